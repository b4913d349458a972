import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dynbatch.errors import CheckpointError
from dynbatch.train import lock
from dynbatch.train.lock import locked
from tests.forks import in_child

HOLDER = """
import sys
from dynbatch.train.lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `run`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_another_process_is_refused_and_a_killed_one_blocks_nobody(tmp_path, holder):
    with pytest.raises(CheckpointError, match=f"process {holder.pid} on .* is training there"):
        with locked(tmp_path / "run"):
            pass
    with locked(tmp_path / "other"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / ".run.lock").exists()  # of the killed one
    with locked(tmp_path / "run"):
        assert str(os.getpid()) in (tmp_path / ".run.lock").read_text()
    assert os.listdir(tmp_path) == []


def test_the_thread_that_holds_it_may_take_it_again_and_others_may_not(tmp_path):
    found = []

    def take():
        try:
            with locked(tmp_path / "run"):
                found.append("held")
        except CheckpointError as error:
            found.append(str(error))

    def in_a_thread():
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    with locked(tmp_path / "run"):
        with locked(tmp_path / "." / "run"):
            pass
        in_a_thread()
    in_a_thread()
    assert "another thread of this process is training there" in found[0]
    assert found[1] == "held"


def test_a_folder_that_was_made_for_it_goes_if_nothing_was_written(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "a" / "b" / "run"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    with locked(tmp_path / "a" / "b" / "run"):
        (tmp_path / "a" / "run").touch()
    assert os.listdir(tmp_path / "a") == ["run"]


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    is_still, answers = lock._is_still, []

    def removed_once(path, handle):
        if not answers:
            path.unlink()
        answers.append(is_still(path, handle))
        return answers[-1]

    monkeypatch.setattr(lock, "_is_still", removed_once)
    with locked(tmp_path / "run"):
        assert (tmp_path / ".run.lock").exists()
    assert answers == [False, True]


def test_where_the_system_has_no_locks_the_folder_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    remove = Path.unlink

    def remove_closed(path, **options):  # as Windows does
        assert all([handle.closed for file, handle in lock._handles.values() if file == path])
        remove(path, **options)

    monkeypatch.setattr(Path, "unlink", remove_closed)
    with locked(tmp_path / "folder" / "run"):
        pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file is a file, not a folder"):
        with locked(tmp_path / "file" / "run"):
            pass


def test_no_path_holds_nothing():
    with locked(None):
        pass


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file/run", "file is a file, not a folder"),
        ("file/below/run", "lies below a file"),
        ("folder", "it is a folder"),
        ("/proc/dynbatch/run", "No such file or directory"),
        ("/proc/run", "No such file or directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_error(tmp_path, path, says):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=f"nothing can be written there: .*{says}") as caught:
        with locked(tmp_path / path):
            pass
    assert "fix: give a folder that can be written" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_holds_nothing_of_its_parents(tmp_path):
    def is_refused():
        try:
            with locked(tmp_path / "run"):
                return False
        except CheckpointError:
            return True

    with locked(tmp_path / "run"):
        assert in_child(is_refused)
        assert (tmp_path / ".run.lock").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_that_leaves_the_block_lets_its_parents_lock_be(tmp_path):
    block = locked(tmp_path / "run")

    def leave():
        block.__exit__(None, None, None)
        return True

    with block:
        assert in_child(leave)
        assert (tmp_path / ".run.lock").exists()
        assert in_child(lambda: lock._held == {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_finds_the_table_of_locks_free(tmp_path):
    lock._held_guard.acquire()
    thread = threading.Timer(0.02, lock._held_guard.release)
    thread.start()

    def take():
        with locked(tmp_path / "run"):
            return True

    assert in_child(take)
    thread.join()
