"""MPI: processes that mpiexec starts have the sums of sockets, to the bit, and end together."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynbatch import parallel
from dynbatch.errors import ParallelError
from dynbatch.parallel import mpi
from dynbatch.parallel.environment import PlaceInRun
from dynbatch.parallel.mpi import joined_by_mpi
from tests.parallel.ranks import digest, on_ranks

MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    not MPIEXEC.exists(), reason="no mpiexec beside Python: pip install mpi4py mpich"
)


def program(text):
    folder = Path(__file__).parents[2]
    given = {**os.environ, "PYTHONPATH": str(folder)}
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-c", text]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=60, cwd=folder
    )


@pytest.mark.slow
@needs_mpi
def test_sums_have_the_bits_of_sockets_and_an_error_ends_a_rank_that_is_busy(tmp_path):
    """Both in one run: what takes its time is the start of three processes."""
    ended = program(
        "import time\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from dynbatch import parallel\n"
        "from tests.parallel.ranks import digest\n"
        "with parallel.connect() as communicator:\n"
        f"    Path({str(tmp_path)!r}, str(communicator.rank)).write_text(digest(communicator))\n"
        "    communicator.barrier()\n"
        "    if communicator.rank == 2:\n"
        "        time.sleep(120)\n"
        "    communicator.all_reduce(np.zeros(3 + communicator.rank))\n"
    )
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == on_ranks(3, digest)
    assert ended.returncode != 0
    assert "Traceback" in ended.stderr and "and this rank expected" in ended.stderr


def test_what_is_printed_is_read_before_mpi_ends_the_ranks(monkeypatch):
    monkeypatch.setattr(mpi.time, "sleep", lambda _: told.append(os.read(source, 3)))
    for text in (b"", b"abc", b"abcdefgh"):
        told, (source, descriptor) = [], os.pipe()
        os.write(descriptor, text)
        mpi.wait_until_read(descriptor)
        assert b"".join(told) == text
        os.close(source)
        os.close(descriptor)


def test_a_launcher_that_reads_nothing_is_not_waited_for_long(monkeypatch, tmp_path):
    slept = []
    monkeypatch.setattr(
        mpi, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    )
    source, descriptor = os.pipe()
    os.write(descriptor, b"abc")
    mpi.wait_until_read(descriptor)
    os.close(source)
    os.close(descriptor)
    assert sum(slept) == pytest.approx(mpi.READING_SECONDS, rel=0.01)
    with open(tmp_path / "log", "w+b", buffering=0) as file:
        file.write(b"abc")
        mpi.wait_until_read(file.fileno())
    mpi.wait_until_read(descriptor)  # which is closed
    assert sum(slept) == pytest.approx(mpi.READING_SECONDS, rel=0.01)


@needs_mpi
def test_nothing_is_exchanged_after_an_exchange_that_was_cut_off(monkeypatch):
    """MPI goes on with its messages, whose memory must stay."""
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)

    def interrupted(*_):
        raise KeyboardInterrupt

    transport = joined_by_mpi(PlaceInRun())
    with monkeypatch.context() as patch:
        patch.setattr(transport, "_has_moved", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transport.exchange([None], [None])
    with pytest.raises(ParallelError, match="rank 0 was cut off by KeyboardInterrupt"):
        transport.exchange([None], [None])


@needs_mpi
def test_an_mpi_without_the_other_processes_is_refused():
    theirs = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    assert theirs.COMM_WORLD.Get_size() == 1
    with pytest.raises(ParallelError, match="tells of 2 processes, and the MPI of mpi4py of 1"):
        joined_by_mpi(PlaceInRun(0, 2, 0, True, local_size=2))


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(ParallelError, match=r"mpi4py cannot be imported .*\n.*dynbatch\[mpi\]"):
        parallel.connect(transport="mpi")
