"""`dynbatch launch -n 2 PROGRAM ...`: a program in several processes, which train as one."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from dynbatch.errors import ArgumentError
from dynbatch.parallel.launcher import launch

SUMMARY = "run a program in several processes"
HELP = """\
Run a program in several processes, each with a rank. The program joins them by
dynbatch.parallel.connect().

  dynbatch launch -n 4 train.py --lr 0.01
  dynbatch launch -n 2 -m package.training
  dynbatch launch -n 8 --quiet train.py
"""
MORE = """\
output:
  Rank 0 has the terminal. Lines of other ranks begin with their number, as in
  "[1] ..."; their progress bars are left out.

environment:
  Each process has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as
  torchrun sets them; a program started by torchrun, mpiexec or SLURM is joined
  just so. OMP_NUM_THREADS is processors / N unless you set it, and connect()
  gives dynbatch as many.

several machines:
  mpiexec or SLURM's srun starts the program on them, and MPI joins its
  processes: pip install 'dynbatch[mpi]'.

failure:
  If a rank fails, is killed or stopped, the others end within seconds, and one
  line says which it was. Ctrl-C, SIGTERM and SIGHUP go to all.

exit status:
  0; that of the rank that failed first, 128 + N if signal N killed it; 2 after
  a wrong option; 130 after Ctrl-C.
"""

OF_MACHINES = ("--nodes", "--node-rank", "--address")
"""Options that it had until 0.1; whoever gives them is told what to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--processes", metavar="N", type=int, default=2, help="how many (2)")
    parser.add_argument(
        "-m", "--module", action="store_true", help="PROGRAM is a module, as in python -m"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="leave out what other ranks than 0 print"
    )
    for name in OF_MACHINES:
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("program", metavar="PROGRAM", help="a file of Python")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments and options"
    )


def run(options: argparse.Namespace) -> int:
    """Run the program. Returns the exit status.

    Raises:
        ArgumentError: a number is wrong, the program is Python itself, or an option is for several
            machines.
    """
    if any([getattr(options, name[2:].replace("-", "_")) for name in OF_MACHINES]):
        raise ArgumentError(
            f"{', '.join(OF_MACHINES)}: these options are gone.\n"
            "  rule: `dynbatch launch` starts processes on one machine; MPI joins several\n"
            "  fix:  pip install 'dynbatch[mpi]', and mpiexec -n 8 -hosts node1,node2 python "
            f"{options.program}"
        )
    if options.processes < 1:
        raise ArgumentError(
            f"-n {options.processes}.\n  rule: a process or more\n  fix:  -n 2 for two processes"
        )
    if not options.module and re.fullmatch(r"python[\d.]*(\.exe)?", Path(options.program).name):
        repeated = " ".join([f"dynbatch launch -n {options.processes}", *options.arguments])
        raise ArgumentError(
            f"the program is {options.program}.\n"
            "  rule: PROGRAM is a file of Python, which this Python runs\n"
            f"  fix:  leave {options.program} out: {repeated}"
        )
    program = ["-m", options.program] if options.module else [options.program]
    command = [sys.executable, *program, *options.arguments]
    return launch(command, options.processes, options.quiet)
