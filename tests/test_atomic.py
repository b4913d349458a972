import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from dynbatch.atomic import replacing


def test_file_is_replaced_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("old", "new"):
        with replacing(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "new" and os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_old_file_stays_and_the_temporary_goes_when_the_block_raises(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_temporary_of_a_killed_process_is_taken_over(tmp_path):
    path = tmp_path / "file.txt"
    (tmp_path / ".file.txt.saving").write_text("left behind, and longer than the new text")
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["file.txt"]


def test_whatever_a_killed_writer_left_is_removed_by_the_next_save(tmp_path):
    path = tmp_path / "run.safetensors"
    script = """
import os, signal, sys
from pathlib import Path
from dynbatch.atomic import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.with_name(".tmp1").write_bytes(bytes(1000))  # as safetensors writes
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL and os.listdir(tmp_path) == [
        ".run.safetensors.saving"
    ]
    with replacing(path) as temporary:
        save_file({"x": np.zeros(3)}, str(temporary))
    assert os.listdir(tmp_path) == ["run.safetensors"]


def test_safetensors_writes_nothing_outside_the_folder_aside(tmp_path):
    """A writer's own temporaries lie beside the file that it is given."""
    with replacing(tmp_path / "run.safetensors") as temporary:
        assert temporary.parent != tmp_path and temporary.name == "run.safetensors"
        save_file({"x": np.zeros(3)}, str(temporary))
        assert os.listdir(tmp_path) == [temporary.parent.name]


def test_data_reaches_the_disk_before_the_name_and_the_folder_after(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle):
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def spy_replace(source, target):
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    with replacing(tmp_path / "file.txt") as temporary:
        temporary.write_text("new")
    assert done == ["file", "replace", "folder"]


def test_file_is_readable_as_the_umask_allows(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("new")
        temporary.chmod(0o600)
    assert (tmp_path / "file").stat().st_mode == plain.stat().st_mode


def test_an_error_names_the_file_and_not_the_temporary(tmp_path):
    path = tmp_path / "file.txt"
    for error in (
        OSError(errno.ENOSPC, "full"),  # as `write` raises it
        OSError(errno.EACCES, "denied", str(tmp_path / ".file.txt.saving")),
    ):
        with pytest.raises(OSError, match=error.strerror) as caught, replacing(path):
            raise error
        assert caught.value.filename == str(path) and caught.value.errno == error.errno
    path.mkdir()
    with pytest.raises(OSError) as caught, replacing(path):
        pass
    assert caught.value.filename == str(path) and ".saving" not in str(caught.value)
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        open(tmp_path / "other.txt")
    assert caught.value.filename == str(tmp_path / "other.txt")
