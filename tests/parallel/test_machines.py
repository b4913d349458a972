"""Two machines: namespaces of Linux, each with a network and processes of its own, and a cable."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

BEAT = "0.2"
"""Seconds; a machine is lost when it is silent for sixteen of them."""

PROGRAM = """
import sys
import time
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
    print("equal", communicator.gather_objects("memfd:dynbatch" in maps), flush=True)
    while "wait" in sys.argv:
        communicator.barrier()
        time.sleep(0.01)
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
        yield names, ends
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


def launched(machines, tmp_path, *arguments):
    """The launchers of both machines, two ranks each."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ, "DYNBATCH_GUARD": BEAT, "DYNBATCH_SECRET": "word",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    launch = [sys.executable, "-m", "dynbatch", "launch", "-n", "2", "--nodes", "2"]
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "-p", "--fork", "--mount-proc", *launch,
             "--node-rank", str(k), "--address", "10.77.0.1:29500", "program.py", *arguments],
            cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1,
        )
        for k, name in enumerate(machines)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def machines():
    if not can_make_machines():
        pytest.skip("it takes Linux, root, ip and unshare to make two machines of one")
    with two_machines() as made:
        yield made


@pytest.mark.slow
def test_ranks_of_two_machines_have_sums_in_the_order_of_ranks(machines, tmp_path):
    """The bits of ranks on one machine; without memory in common."""
    first, second = launched(machines[0], tmp_path)
    out, err = first.communicate(timeout=120)
    other, other_err = second.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 0), err + other_err
    same = "equal [False, False, False, False]"
    assert sorted(out.splitlines()) == [f"[1] {same}", same]
    assert sorted(other.splitlines()) == [f"[2] {same}", f"[3] {same}"]


@pytest.mark.exhaustive
def test_a_cut_cable_ends_both_sides(machines, tmp_path):
    names, ends = machines
    running = launched(names, tmp_path, "wait")
    assert running[0].stdout.readline().endswith("equal [False, False, False, False]\n")
    run("ip", "-n", names[0], "link", "set", ends[0], "down")
    said = [each.communicate(timeout=120) for each in running]
    for (_, err), other in zip(said, ("2", "0"), strict=True):
        assert "was lost: its machine or its guard is silent" in err, err
        assert f"rank {other} " in err or f"rank {int(other) + 1} " in err
    assert all(each.returncode for each in running)
