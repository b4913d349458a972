"""`connect`: a process reads its place from the environment, and finds the others."""

import gc
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from weakref import ref

import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel import Communicator, rendezvous
from dynbatch.parallel.ending import end_with_process
from dynbatch.parallel.environment import PlaceInRun, place_in_run
from dynbatch.parallel.rendezvous import join, meet_by_torchrun

pytestmark = pytest.mark.slow

NOWHERE = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""

PROGRAM = """
import numpy as np
from dynbatch import parallel
with parallel.connect(timeout=20) as communicator:
    total = np.array([communicator.rank + 1.0])
    communicator.all_reduce(total)
    print(communicator, total)
"""


def test_the_environment_says_which_rank_this_is():
    assert place_in_run({}) == PlaceInRun()
    assert place_in_run({"RANK": "0", "WORLD_SIZE": "1"}) == PlaceInRun()
    given = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert place_in_run(given) == PlaceInRun(2, 4, 2, False, ("node1", 29500))
    assert place_in_run({**given, "LOCAL_RANK": "0"}).local_rank == 0
    assert place_in_run({"PMI_RANK": "1", "PMI_SIZE": "2"}) == PlaceInRun(1, 2, 1, True)
    assert place_in_run({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == PlaceInRun()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one', not a number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "RANK is 2 and WORLD_SIZE 2"),
    ],
)
def test_an_environment_that_is_not_whole_is_refused(environment, told):
    with pytest.raises(ParallelError, match=told):
        place_in_run(environment)


@pytest.fixture
def store(monkeypatch):
    """Torchrun's own, with what is said there."""
    said = {}

    class TCPStore:
        def __init__(self, host, port, is_master, timeout):
            assert host in ("127.0.0.1", NOWHERE) and (port, is_master) == (29500, False)

        def set(self, key, value):
            said[key] = value.encode()

        def get(self, key):
            return said[key]

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(TCPStore=TCPStore))
    return said


def test_under_torchrun_which_takes_the_port_itself_rank_0_says_where_it_listens(store):
    given = [PlaceInRun(rank, 2, rank, address=("127.0.0.1", 29500)) for rank in range(2)]
    first, second = [meet_by_torchrun(place, 5.0) for place in given]
    assert first.address == second.address != ("127.0.0.1", 29500)
    assert first.secret == second.secret != ""


def test_under_torchrun_too_all_learn_that_rank_0_cannot_listen(store):
    first, second = [PlaceInRun(rank, 2, rank, address=(NOWHERE, 29500)) for rank in range(2)]
    with pytest.raises(ParallelError, match=f"^rank 0 cannot listen at {NOWHERE}:0: it is an addr"):
        meet_by_torchrun(first, 5.0)
    with pytest.raises(ParallelError, match=r"^rank 1 ends: rank 0 cannot listen at .*\.$"):
        meet_by_torchrun(second, 5.0)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks ask by a socket that Linux has")
def test_ranks_of_an_address_that_is_not_here_end_together(monkeypatch):
    monkeypatch.setattr(rendezvous, "ATTEMPT_SECONDS", 0.05)
    with ThreadPoolExecutor(3) as threads:
        places = [PlaceInRun(rank, 3, address=(NOWHERE, 29500)) for rank in (1, 2, 0)]
        joining = [threads.submit(join, place, 20.0) for place in places]
        errors = [each.exception() for each in joining]
    *others, first = map(str, errors)
    told = f"rank 0 cannot listen at {NOWHERE}:29500: "
    told += "it is an address of another machine, or of none."
    assert first.startswith(f"{told}\n  rule: MASTER_ADDR and MASTER_PORT")
    assert others == [f"rank {rank} ends: {told}" for rank in (1, 2)]
    assert [error.rank for error in errors] == [0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks ask by a socket that Linux has")
def test_a_port_that_is_taken_is_one_error_and_a_line_for_each_other_rank():
    """By a program that says nothing to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        ranks = [started(environment, rank) for rank in range(2)]
        (_, first), (_, second) = [each.communicate(timeout=60) for each in ranks]
    told = f"rank 0 cannot listen at 127.0.0.1:{port}: another program listens there."
    assert [each.returncode for each in ranks] == [1, 1]
    problem, rule, fix = first.splitlines()
    assert (problem, rule[:8], fix[:8]) == (f"error: {told}", "  rule: ", "  fix:  ")
    assert second == f"error: rank 1 ends: {told}\n"


@pytest.mark.usefixtures("young_heap")
def test_a_closed_communicator_is_not_kept_until_the_process_ends(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    communicator = Communicator()
    end_with_process(communicator)
    reference = ref(communicator)
    communicator.close()
    del communicator
    gc.collect()
    assert reference() is None


def error_of(rank, size, port, timeout):
    with pytest.raises(ParallelError) as caught:
        join(PlaceInRun(rank, size, address=("127.0.0.1", port)), timeout)
    return str(caught.value)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


FIRST = "fix:  call connect() first and prepare data afterwards, or give all ranks connect(timeout="


def test_a_rank_that_comes_late_is_told_with_the_fix(free_port):
    told = error_of(0, 2, free_port, 0.1)
    assert told.startswith("rank 0 waited in vain for ranks [1] of 2; connections turned away: 0.")
    assert FIRST in told


def test_so_is_a_missing_rank_0_whether_it_listens_or_not(free_port):
    told = error_of(1, 2, free_port, 0.1)
    assert told.startswith(f"rank 1 cannot reach rank 0 at 127.0.0.1:{free_port}: ")
    assert FIRST in told
    with socket.create_server(("127.0.0.1", free_port)):  # which `dynbatch launch` opens for it
        told = error_of(1, 2, free_port, 0.2)
    assert told.startswith(f"rank 1 waited in vain for rank 0 at 127.0.0.1:{free_port}.")
    assert FIRST in told


def test_ranks_with_unequal_world_sizes_are_told_so(free_port):
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(error_of, 0, 2, free_port, 1.0)
        told = error_of(1, 3, free_port, 1.0)
    assert told.startswith("rank 0 turned rank 1 away") and "WORLD_SIZE and DYNBATCH_SECRET" in told
    assert "this is rank 1, with WORLD_SIZE 3" in told
    assert "connections turned away: 1.\n  rule: as many" in first.result()


def started(environment, rank, secret="ours"):
    given = {**environment, "RANK": str(rank), "DYNBATCH_SECRET": secret}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_find_each_other_and_keep_strangers_out():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": "3", "MASTER_PORT": str(port)}
    stranger = started(environment, 1, "another's")
    ranks = [started(environment, rank) for rank in range(3)]
    told = [each.communicate(timeout=60) for each in ranks]
    assert [out for out, _ in told] == [
        f"Communicator(rank {rank} of 3 by tcp) [6.]\n" for rank in range(3)
    ], told
    stranger.kill()
    assert stranger.communicate()[0] == ""
