"""`dynbatch launch -n 2 PROGRAM ...`: a program in several processes, which train as one."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from dynbatch.errors import ArgumentError
from dynbatch.parallel.launcher import Nodes, launch

SUMMARY = "run a program in several processes"
HELP = """\
Run a program in several processes, each with a rank. The program joins them by
dynbatch.parallel.connect().

  dynbatch launch -n 4 train.py --lr 0.01
  dynbatch launch -n 2 -m package.training
  dynbatch launch -n 8 --nodes 2 --node-rank 0 --address node1:29500 train.py
"""
MORE = """\
output:
  Rank 0 has the terminal. Lines of other ranks begin with their number, as in
  "[1] ..."; their progress bars are left out.

environment:
  Each process has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as
  torchrun sets them; a program started by torchrun, mpiexec or SLURM is joined
  just so. OMP_NUM_THREADS is processors / N unless you set it, and connect()
  gives dynbatch as many. On several machines the same command is started on
  each, with DYNBATCH_SECRET set to one random word.

failure:
  If a rank fails, is killed or stopped, the others end within seconds, and one
  line says which it was. Ctrl-C, SIGTERM and SIGHUP go to all.

exit status:
  0; that of the rank that failed first, 128 + N if signal N killed it; 2 after
  a wrong option; 130 after Ctrl-C.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--processes", metavar="N", type=int, default=2, help="on this machine (2)"
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="PROGRAM is a module, as in python -m"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="leave out what other ranks than 0 print"
    )
    parser.add_argument(
        "--nodes", metavar="M", type=int, default=1, help="machines, N processes each (1)"
    )
    parser.add_argument(
        "--node-rank", metavar="K", type=int, default=0, help="of this machine: 0 to M - 1 (0)"
    )
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of the machine 0, where rank 0 listens"
    )
    parser.add_argument("program", metavar="PROGRAM", help="a file of Python")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments and options"
    )


def run(options: argparse.Namespace) -> int:
    """Run the program. Returns the exit status.

    Raises:
        ArgumentError: a number or the address is wrong.
        ParallelError: rank 0 cannot listen.
    """
    if options.processes < 1 or not 0 <= options.node_rank < options.nodes:
        raise ArgumentError(
            f"-n {options.processes} --nodes {options.nodes} --node-rank {options.node_rank}.\n"
            "  rule: a process or more on each machine; machines are counted from 0\n"
            "  fix:  -n 2 for two processes here; of --nodes 2, --node-rank is 0 and 1"
        )
    if not options.module and re.fullmatch(r"python[\d.]*(\.exe)?", Path(options.program).name):
        repeated = " ".join([f"dynbatch launch -n {options.processes}", *options.arguments])
        raise ArgumentError(
            f"the program is {options.program}.\n"
            "  rule: PROGRAM is a file of Python, which this Python runs\n"
            f"  fix:  leave {options.program} out: {repeated}"
        )
    program = ["-m", options.program] if options.module else [options.program]
    nodes = Nodes(options.nodes, options.node_rank, address_of(options))
    command = [sys.executable, *program, *options.arguments]
    return launch(command, options.processes, nodes, options.quiet)


def address_of(options: argparse.Namespace) -> tuple[str, int] | None:
    """Host and port of --address.

    Raises:
        ArgumentError: it is missing on several machines, or has no port; or there is no secret.
    """
    if options.address is None and options.nodes == 1:
        return None
    host, _, port = (options.address or "").rpartition(":")
    if not host or not port.isdecimal():
        raise ArgumentError(
            f"--address {options.address}.\n"
            "  rule: several machines meet at HOST:PORT of the machine 0\n"
            "  fix:  --address node1:29500"
        )
    if options.nodes > 1 and not os.environ.get("DYNBATCH_SECRET"):
        raise ArgumentError(
            "DYNBATCH_SECRET is not set.\n"
            "  rule: all machines know one random word, which keeps processes of others out\n"
            "  fix:  DYNBATCH_SECRET=WORD dynbatch launch ..., where `openssl rand -hex 16` made "
            "WORD"
        )
    return host, int(port)
