"""`connect`: a process reads its place from the environment, and finds the others."""

import gc
import importlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import pytest

import dynbatch
from dynbatch import parallel
from dynbatch.errors import ParallelError
from dynbatch.parallel import Communicator
from dynbatch.parallel.ending import end_with_process
from dynbatch.parallel.environment import PlaceInRun, place_in_run
from dynbatch.parallel.rendezvous import _paths, join
from tests.parallel.ranks import transports

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
bound = set()
sys.addaudithook(lambda name, given: name == "socket.bind" and bound.add(given[0].family.name))
import numpy as np
from dynbatch import parallel
with parallel.connect(timeout=20) as communicator:
    total = np.array([communicator.rank + 1.0])
    communicator.all_reduce(total)
    print(communicator, total)
    print(bound - {"AF_UNIX"})
"""


def test_the_environment_says_which_rank_this_is():
    assert place_in_run({}) == PlaceInRun()
    assert place_in_run({"RANK": "0", "WORLD_SIZE": "1"}) == PlaceInRun()
    given = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}
    assert place_in_run(given) == PlaceInRun(2, 4, 2, False, 29500, 4)
    given |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert place_in_run(given) == PlaceInRun(2, 4, 0, False, 29500, 2)
    of_mpi = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    assert place_in_run(of_mpi) == PlaceInRun(1, 2, 1, True, local_size=2)
    assert place_in_run({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == PlaceInRun()
    given |= {"DYNBATCH_RUN": "one", "SLURM_JOB_ID": "17"}
    assert place_in_run(given) == PlaceInRun(2, 4, 0, False, 29500, 2, "one 17")


@pytest.mark.parametrize(
    ("machines", "more", "place"),
    [
        ("2", {}, PlaceInRun(5, 8, 1, True, local_size=8)),
        ("2", {"LOCAL_WORLD_SIZE": "4"}, PlaceInRun(5, 8, 5, False, 7, 4)),
        ("2", {"SLURM_PROCID": "1"}, PlaceInRun(5, 8, 5, False, 7, 8)),  # another program's numbers
        ("1", {}, PlaceInRun(5, 8, 5, False, 7, 8)),
    ],
)
def test_numbers_of_slurm_that_a_script_repeats_for_pytorch_mean_mpi_on_machines(
    machines, more, place
):
    given = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "7", "SLURM_STEP_NUM_NODES": machines}
    of_slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    assert place_in_run(given | of_slurm | more) == place


def test_without_mpi_such_a_script_is_told_at_once_what_is_missing(monkeypatch):
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "7", "SLURM_STEP_NUM_NODES": "2"}
    for name, value in {**given, "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(ParallelError, match=r"mpi4py cannot be imported .*\n.*dynbatch\[mpi\]"):
        parallel.connect()


def test_an_error_of_connect_that_nobody_catches_is_printed_without_a_traceback(monkeypatch, capfd):
    shown, told = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *each: shown.append(each[1]))
    with parallel.connect() as joined_before, pytest.raises(ParallelError) as caught:
        parallel.connect(transport="tcp")
    monkeypatch.setattr(joined_before, "fail_by", told.append)
    other = ValueError()
    for error in (caught.value, other):
        sys.excepthook(type(error), error, None)
    assert shown == [other] and told == [caught.value]
    assert capfd.readouterr().err == f"error: {caught.value}\n"


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


def test_torchrun_on_several_machines_is_refused_with_the_command_that_does(monkeypatch):
    given = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ParallelError, match=r"^2 of 4 processes are on this machine(?s:.*)mpiexec"):
        parallel.connect()


def test_a_transport_that_is_gone_is_told_so():
    with pytest.raises(ParallelError, match=r"'tcp' is unknown(?s:.*)leave it out"):
        parallel.connect(transport="tcp")


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


@pytest.fixture
def folder(monkeypatch):
    """A folder to meet in; the name of a socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
        yield Path(folder)


def error_of(rank, size, timeout=0.1):
    with pytest.raises(ParallelError) as caught:
        join(PlaceInRun(rank, size, port=7, local_size=size), timeout)
    return str(caught.value)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("rank", "missing"), [(0, [1, 2]), (1, [0])])
def test_a_rank_that_is_missing_is_told_with_the_fix(rank, missing):
    told = error_of(rank, 3)
    assert told.startswith(f"rank {rank} waited in vain for ranks {missing} of 3 at MASTER_PORT 7.")
    assert "fix:  call connect() first and prepare data afterwards, or give all ranks conn" in told
    assert "on several machines start with mpiexec or srun" in told


def test_ranks_meet_only_where_their_user_alone_may_go(folder):
    meeting = folder / f"dynbatch-ranks-{os.getuid()}"
    meeting.mkdir()
    meeting.chmod(0o755)
    assert error_of(0, 2).startswith(f"{meeting} is not a folder that this user alone may enter")
    meeting.rmdir()
    meeting.touch()
    assert error_of(0, 2).startswith(f"{meeting} is not a folder that this user alone may enter")


def test_a_path_that_is_too_long_for_a_socket_is_told_with_the_fix(folder, monkeypatch):
    longer = folder / ("x" * 100)
    longer.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(longer))
    told = error_of(0, 2)
    assert "AF_UNIX path too long" in told and "a shorter TMPDIR names another folder" in told


def test_a_rank_that_fails_after_it_has_joined_tells_the_others_why(monkeypatch):
    joined, other = transports(2)
    connecting = importlib.import_module("dynbatch.parallel.connect")
    monkeypatch.setattr(connecting, "_host_transport", lambda *_: joined)
    monkeypatch.setattr(connecting, "share_processors", lambda: None)
    monkeypatch.setenv("DYNBATCH_GUARD", "x")
    with pytest.raises(ParallelError, match="DYNBATCH_GUARD is 'x'"):
        parallel.connect()
    assert other.log.failure().message.startswith("the environment variable DYNBATCH_GUARD is 'x'")
    with pytest.raises(ParallelError, match="DYNBATCH_GUARD is 'x'"):
        Communicator(other).barrier()
    other.close()


def test_what_a_killed_run_has_left_behind_is_no_hindrance_but_another_run_is(folder):
    meeting = folder / f"dynbatch-ranks-{os.getuid()}"
    meeting.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(_paths(PlaceInRun(0, 2, port=7))[0])
        other.listen()
        assert "-2-0: another process listens there.\n  rule: each run has a M" in error_of(0, 2)
    assert "waited in vain" in error_of(0, 2)
    assert list(meeting.iterdir()) == []


def joined_ranks(places):
    """The transport of each place, or its error; they join as threads."""

    def joined(place):
        try:
            return join(place, timeout=20)
        except ParallelError as error:
            return error

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(joined, places))


@pytest.mark.usefixtures("folder")
def test_runs_of_other_names_with_one_port_do_not_meet():
    runs = ["one", "one", "\udcff", "\udcff"]  # a byte that is not text
    joined = joined_ranks([PlaceInRun(k % 2, 2, 0, False, 7, 2, run) for k, run in enumerate(runs)])
    for first, second in (joined[:2], joined[2:]):
        first.log.add("left", 0, "here")
        assert len(second.log.entries()) == 1
    for each in joined:
        each.close()
    with pytest.raises(ParallelError, match=r"\[0\] of 2 at MASTER_PORT 7 in the run or job two\."):
        join(PlaceInRun(1, 2, 1, False, 7, 2, "two"), 0.1)


def test_a_second_process_that_is_one_rank_ends_both_runs(folder):
    """Either may have ranks of the other's run by then."""
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(error_of, 0, 2, 20)
        while not list(folder.glob("*/7-*-2-0")):
            time.sleep(0.001)
        assert "another process listens there" in error_of(0, 2)
        told = first.result()
    assert told.startswith("two processes are rank 0 of 2 at MASTER_PORT 7.\n  rule: each run has")
    assert "DYNBATCH_RUN=NAME, on all ranks, tells runs apart" in told


def started(environment, rank, program=PROGRAM):
    return subprocess.Popen(
        [sys.executable, "-c", program], env={**environment, "RANK": str(rank)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_processes_find_each_other_and_no_socket_of_a_network_is_opened():
    environment = {**os.environ, "WORLD_SIZE": "3", "MASTER_PORT": str(os.getpid())}
    told = [each.communicate(timeout=60) for each in [started(environment, r) for r in range(3)]]
    assert [out for out, _ in told] == [
        f"Communicator(rank {rank} of 3 by sockets) [6.]\nset()\n" for rank in range(3)
    ], told


def test_own_code_listens_nowhere_else():
    """One file opens a listener, of a path; MPI, NCCL and a user's program have their own."""
    package = Path(dynbatch.__file__).parent
    opening = re.compile(r"\.listen\(|create_server|socketserver|http\.server|start_server")
    listening = [p.name for p in package.rglob("*.py") if opening.search(p.read_text("utf-8"))]
    assert listening == ["rendezvous.py"]
    text = (package / "parallel" / "rendezvous.py").read_text("utf-8")
    assert set(re.findall(r"AF_\w+", text)) == {"AF_UNIX"}
