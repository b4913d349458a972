"""Two machines: namespaces of Linux, each with a network and processes of its own, and a cable."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.parallel.test_mpi import MPIEXEC, needs_mpi

PROGRAM = """
import socket
import numpy as np
from dynbatch import parallel
from dynbatch.parameter import Parameter

def gradient(rank, step):
    return np.random.default_rng([rank, step]).standard_normal(30_000, np.float32)

with parallel.connect() as communicator:
    weight = Parameter(np.zeros(30_000, np.float32))
    for step in range(3):
        weight.grad = gradient(communicator.rank, step)
        parallel.sum_gradients(communicator, [weight])
        one, *others = [gradient(rank, step) for rank in range(4)]
        for other in others:
            one = one + other
        assert (weight.grad == one).all()
    maps = open("/proc/self/maps").read()
    told = communicator.gather_objects((socket.gethostname(), "memfd:dynbatch" in maps))
    if communicator.rank == 0:
        with open("told", "w") as file:  # mpiexec may drop what stands in a pipe when one fails
            print(communicator, told, file=file)
    communicator.barrier()
    if communicator.rank == 2:
        raise ValueError("no such word")
    while True:
        pass
"""


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def two_machines():
    """The names of two network namespaces, 10.77.0.1 and 10.77.0.2, joined by a cable."""
    names = [f"dynbatch-{os.getpid()}-{k}" for k in (1, 2)]
    ends = [f"db{os.getpid() % 10**6}-{k}" for k in (1, 2)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for k, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            run("ip", "link", "set", end, "netns", name)
            run("ip", "-n", name, "addr", "add", f"10.77.0.{k}/24", "dev", end)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", end, "up")
        yield names
    finally:
        for name in names:  # the cable goes with them
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def can_make_machines():
    if not all(map(shutil.which, ("ip", "unshare"))):
        return False
    if subprocess.run(["unshare", "-p", "--fork", "true"], capture_output=True).returncode:
        return False
    try:
        with two_machines():
            return True
    except subprocess.CalledProcessError:
        return False


@pytest.fixture(scope="module")
def machines():
    if not can_make_machines():
        pytest.skip("it takes Linux, root, ip and unshare to make two machines of one")
    with two_machines() as names:
        yield names


REMOTE = """#!/bin/sh
test "$1" = -x && shift
test "$1" = 10.77.0.1 && name={} || name={}
host=$1; shift
exec ip netns exec $name unshare --uts -p --fork --mount-proc sh -c "hostname $host; $*"
"""
"""Starts a command on a machine, in place of ssh."""


@pytest.mark.slow
@needs_mpi
def test_ranks_of_two_machines_have_sums_in_the_order_of_ranks_and_end_together(machines, tmp_path):
    """The bits of ranks on one machine, without memory in common; then one fails."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "remote").write_text(REMOTE.format(*machines))
    (tmp_path / "remote").chmod(0o755)
    ended = subprocess.run(
        ["ip", "netns", "exec", machines[0], "unshare", "--uts", "sh", "-c", 'hostname one; "$@"',
         "sh", MPIEXEC, "-launcher", "ssh", "-launcher-exec", "./remote",
         "-hosts", "10.77.0.1,10.77.0.2", "-ppn", "2", "-n", "4", sys.executable, "program.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        # Both machines are this one: MPICH would look for memory in common, and not find it.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "UCX_TLS": "tcp"},
    )  # fmt: skip
    hosts = [("one", False)] * 2 + [("10.77.0.2", False)] * 2
    told = (tmp_path / "told").read_text()
    assert told == f"Communicator(rank 0 of 4 by mpi) {hosts}\n", ended.stderr
    assert ended.returncode != 0 and "ValueError: no such word" in ended.stderr
