"""MPI: processes that mpiexec starts have TCP's sums, to the bit, and end together."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynbatch import parallel
from dynbatch.errors import ParallelError
from dynbatch.parallel.communicator import DIRECT_BYTES
from dynbatch.parallel.environment import PlaceInRun
from dynbatch.parallel.mpi import joined_by_mpi
from tests.parallel.ranks import on_ranks

MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    not MPIEXEC.exists(), reason="no mpiexec beside Python: pip install mpi4py mpich"
)


def digest(communicator):
    """Of everything that the transport moves: both ways of sums, strides, nothing, messages."""
    rank = communicator.rank
    numbers = np.random.default_rng(rank)
    arrays = [numbers.standard_normal(n).astype("f4") for n in (0, 7, DIRECT_BYTES // 4 + 3)]
    arrays.append(numbers.standard_normal((5, 6))[:, ::2])
    communicator.all_reduce(*arrays)
    flat = numbers.standard_normal(9)
    communicator.reduce_scatter(flat, [*[0, 9, 9, 9][: communicator.size], 9])
    communicator.broadcast(flat, root=communicator.size - 1)
    own = np.full(DIRECT_BYTES, rank)
    if rank == 1:  # while others are in the next exchange of all
        communicator.send(own, to=0)
        communicator.exchange({0: own}, {0: (answer := np.zeros(2))})
        own[:2] = answer
    elif rank == 0:
        communicator.receive(own, source=1)
        communicator.exchange({1: own[-2:].astype(float)}, {1: own})
    objects = communicator.gather_objects({rank: "x" * rank})
    told = b"".join(each.tobytes() for each in (*arrays, flat, own)) + repr(objects).encode()
    return hashlib.sha256(told).hexdigest()


def program(text):
    folder = Path(__file__).parents[2]
    given = {**os.environ, "PYTHONPATH": str(folder)}
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-c", text]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=60, cwd=folder
    )


@needs_mpi
def test_sums_have_the_bits_of_tcp(tmp_path):
    ended = program(
        "from pathlib import Path\n"
        "from dynbatch import parallel\n"
        "from tests.parallel.test_mpi import digest\n"
        "with parallel.connect() as communicator:\n"
        "    told = digest(communicator)\n"
        f"Path({str(tmp_path)!r}, str(communicator.rank)).write_text(told)\n"
    )
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == on_ranks(3, digest)


@needs_mpi
@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("communicator.barrier()", "ParallelError: rank 1 failed: ValueError: no such word\n"),
        ("time.sleep(60)", "ValueError: no such word\n"),
    ],
)
def test_an_error_of_one_rank_ends_all(last, told):
    """Rank 2 is in the same exchange as rank 0, or busy: then MPI ends it."""
    ended = program(
        "import time\n"
        "from dynbatch import parallel\n"
        "parallel.mpi.LAST_WORDS_SECONDS = 0.5\n"
        "with parallel.connect() as communicator:\n"
        "    communicator.barrier()\n"
        "    if communicator.rank == 1:\n"
        "        raise ValueError('no such word')\n"
        f"    {last} if communicator.rank else communicator.barrier()\n"
    )
    assert ended.returncode != 0
    assert ended.stderr.count("\nValueError: no such word\n") == 1
    assert told in ended.stderr


@needs_mpi
def test_ranks_that_differ_are_told_so():
    ended = program(
        "import numpy as np\n"
        "from dynbatch import parallel\n"
        "with parallel.connect(transport='mpi') as communicator:\n"
        "    communicator.all_reduce(np.zeros(3 + (communicator.rank > 0)))\n"
    )
    assert ended.returncode != 0
    assert "and this rank expected" in ended.stderr


@needs_mpi
def test_nothing_is_exchanged_after_an_exchange_that_was_cut_off(monkeypatch):
    """MPI goes on with its messages, whose memory must stay."""
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)

    def interrupted(is_done):
        raise KeyboardInterrupt

    transport = joined_by_mpi(PlaceInRun())
    with monkeypatch.context() as patch:
        patch.setattr(transport, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transport.exchange([None], [None])
    with pytest.raises(ParallelError, match="rank 0 was cut off by KeyboardInterrupt"):
        transport.exchange([None], [None])


@needs_mpi
def test_an_mpi_without_the_other_processes_is_refused():
    mpi = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    assert mpi.COMM_WORLD.Get_size() == 1
    with pytest.raises(ParallelError, match="tells of 2 processes, and the MPI of mpi4py of 1"):
        joined_by_mpi(PlaceInRun(0, 2, 0, True))


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(ParallelError, match=r"mpi4py cannot be imported .*\n.*dynbatch\[mpi\]"):
        parallel.connect(transport="mpi")


def test_tcp_needs_its_names_where_mpi_started_the_process(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ParallelError, match='transport="tcp" is given, and an MPI launcher'):
        parallel.connect(transport="tcp")
