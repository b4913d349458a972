"""`connect`: a process reads its place from the environment, and finds the others."""

import gc
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from weakref import ref

import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel import Communicator
from dynbatch.parallel.ending import end_with_process
from dynbatch.parallel.environment import PlaceInRun, place_in_run
from dynbatch.parallel.rendezvous import meet_by_torchrun

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


def test_under_torchrun_which_takes_the_port_itself_rank_0_says_where_it_listens(monkeypatch):
    said = {}

    class TCPStore:
        def __init__(self, host, port, is_master, timeout):
            assert (host, port, is_master) == ("127.0.0.1", 29500, False)

        def set(self, key, value):
            said[key] = value.encode()

        def get(self, key):
            return said[key]

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(TCPStore=TCPStore))
    given = [PlaceInRun(rank, 2, rank, address=("127.0.0.1", 29500)) for rank in range(2)]
    first, second = [meet_by_torchrun(place, 5.0) for place in given]
    assert first.address == second.address != ("127.0.0.1", 29500)
    assert first.secret == second.secret != ""


def test_a_closed_communicator_is_not_kept_until_the_process_ends(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    communicator = Communicator()
    end_with_process(communicator)
    reference = ref(communicator)
    communicator.close()
    del communicator
    gc.collect()
    assert reference() is None


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
