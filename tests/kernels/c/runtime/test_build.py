"""Compiling, keeping and loading C, and what happens where that cannot be done."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from dynbatch.kernels.c.runtime import cache as kept_files
from dynbatch.kernels.c.runtime import compiler, library
from tests.marks import needs_compiler

pytestmark = [pytest.mark.slow, needs_compiler]

PROGRAM = """
import numpy as np
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.c.runtime.arrays import address
body = '#include "common.h"\\nEXPORT void add(double x, REAL* out) { *out += x; }\\n'
functions = library.Library("example.c", body).functions(np.dtype("f"))
out = np.ones(1, np.float32)
if functions is not None:
    functions.add(2, address(out))
assert out[0] == (1 if functions is None else 3)
print(repr(library.reason()))
"""

SEVERAL = """
from dynbatch.kernels.c.runtime.library import WORTH_A_HEADER, Unit, build
body = '#include "common.h"\\nEXPORT void add(double x, REAL* out) { *out += x; }\\n'
build([Unit.of(f"example{k}.c", body, "float") for k in range(WORTH_A_HEADER)])
"""


def run(cache: Path, program: str = PROGRAM, **variables: str) -> tuple[str, str]:
    """The output and messages of a process that runs one kernel."""
    environment = {**os.environ, "DYNBATCH_CACHE": str(cache), **variables}
    environment.pop("DYNBATCH_NATIVE", None)
    environment.update(variables)
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Do as `run` in the process of the tests, which forgets folder, compiler and failures."""
    remembered = (kept_files.folder, compiler.compiler)

    def use(cache: Path, **variables: str) -> tuple[str, str]:
        for each in remembered:
            each.cache_clear()
        for name, value in {"DYNBATCH_CACHE": str(cache), **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(library, "switch", library.NativeCode())
        monkeypatch.setattr(library.switch, "is_off", False)
        exec(PROGRAM, {})
        printed = capsys.readouterr()
        return printed.out.strip(), printed.err

    yield use
    monkeypatch.undo()
    for each in remembered:
        each.cache_clear()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where one kernel is kept; only copies of it are changed."""
    folder = tmp_path_factory.mktemp("compiled")
    run(folder)
    return folder


@pytest.fixture
def kept(compiled: Path, tmp_path: Path) -> Path:
    """The kernel's library, in a folder of the test's own."""
    (library,) = shutil.copytree(compiled, tmp_path / "cache").glob("example-float-*.so")
    return library


def test_the_first_use_compiles_and_says_so_and_the_second_does_neither(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _, first = run(cache)
    assert "compiling" in first
    kept = sorted(cache.iterdir())
    assert kept and not [path for path in kept if path.suffix != ".so"]
    assert run(cache) == ("''", "")
    assert sorted(cache.iterdir()) == kept


def test_what_is_said_of_compiling_stands_apart_from_a_progress_bar(
    tmp_path: Path, use: Any
) -> None:
    with tqdm(total=2):
        _, told = use(tmp_path)
    (line,) = [each for each in re.split("[\r\n]", told) if "compiling" in each]
    assert line == "dynbatch: compiling 1 C file, once for float32 ..."


def test_a_truncated_or_changed_file_is_compiled_anew(kept: Path) -> None:
    content = kept.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:-1] + b"x"):
        kept.write_bytes(damaged)
        answer, told = run(kept.parent)
        assert answer == "''" and "compiling 1 C file," in told
        assert kept.read_bytes() == content


def test_files_that_others_can_write_are_not_loaded(kept: Path, use: Any) -> None:
    assert use(kept.parent) == ("''", "")
    kept.chmod(0o777)
    assert "compiling 1 C file, once for float" in use(kept.parent)[1]


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, use: Any) -> None:
    tmp_path.chmod(0o777)
    answer, told = use(tmp_path)
    assert answer == "''" and "for this process only" in told
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_made_leaves_a_folder_of_the_process(
    tmp_path: Path, use: Any
) -> None:
    (tmp_path / "file").write_text("")
    answer, told = use(tmp_path / "file" / "cache")
    assert answer == "''" and "DYNBATCH_CACHE=FOLDER names another" in told


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, mounted with the test's options."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{request.param}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user cannot mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("disk", ["size=4k", "nr_inodes=1"], indirect=True)
def test_a_full_disk_leaves_numpy_and_says_why(disk: Path, use: Any) -> None:
    answer, told = use(disk)
    assert answer != "''" and "NumPy runs in place of C kernels" in told
    assert told.count("NumPy runs") == 1
    assert not list(disk.iterdir())


@pytest.mark.parametrize("disk", ["ro"], indirect=True)
def test_a_folder_that_cannot_be_written_gives_way_to_one_of_the_process(
    disk: Path, use: Any
) -> None:
    answer, told = use(disk)
    assert answer == "''" and "for this process only" in told


def test_a_file_that_grows_too_large_leaves_numpy_and_says_why(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # where there is POSIX
    limit = f"import resource\nresource.setrlimit({resource.RLIMIT_FSIZE}, (4096, 4096))\n"
    answer, told = run(tmp_path, limit + PROGRAM)
    assert answer != "''" and told.count("NumPy runs in place of C kernels") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["false", "cat", f"{sys.executable} -c 1"], ids=["false", "cat", "python"]
)
def test_a_broken_compiler_leaves_numpy_and_says_why(
    tmp_path: Path, use: Any, command: str
) -> None:
    answer, told = use(tmp_path, CC=command)
    assert answer != "''" and "NumPy runs in place of C kernels" in told
    assert told.count("NumPy runs") == 1
    assert not list(tmp_path.iterdir())


def test_no_compiler_leaves_numpy_in_silence(
    tmp_path: Path, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)
    answer, told = use(tmp_path, CC="", PATH=str(tmp_path))
    assert "install gcc or clang" in answer and told == ""


@pytest.mark.exhaustive
def test_zig_needs_no_home(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="dynbatch[compiler] is not installed")
    answer, told = run(tmp_path, CC=f"{sys.executable} -m ziglang cc", HOME="/dev/null/home")
    assert answer == "''" and "compiling 1 C file," in told


def test_a_switch_turns_c_off(tmp_path: Path) -> None:
    assert run(tmp_path, DYNBATCH_NATIVE="0") == ("'DYNBATCH_NATIVE=0 turns them off'", "")
    assert not list(tmp_path.iterdir())


def told_by_two(cache: Path, program: str) -> list[bytes]:
    """The messages of two processes that do the same at once."""
    environment = {**os.environ, "DYNBATCH_CACHE": str(cache)}
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    return told


def test_two_processes_at_once_keep_one_good_file(tmp_path: Path) -> None:
    told = told_by_two(tmp_path, PROGRAM)
    assert all(b"NumPy runs" not in text for text in told)
    kept = list(tmp_path.iterdir())
    assert kept and all(path.match("example-float-*.so") for path in kept)
    assert run(tmp_path) == ("''", "")


def test_of_two_processes_at_once_one_compiles_what_both_need(tmp_path: Path) -> None:
    told = told_by_two(tmp_path, SEVERAL)
    assert sorted(text.count(b"compiling 8 C files") for text in told) == [0, 1]
    assert len(list(tmp_path.iterdir())) == 8


@pytest.mark.parametrize("failure", [BlockingIOError, OSError(errno.ENOLCK, "no locks")])
def test_where_no_lock_is_had_it_is_compiled_all_the_same(
    tmp_path: Path, use: Any, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    """The other process stands still, or the file system has no locks."""

    def flock(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(kept_files, "WAIT", 0.05)
    monkeypatch.setattr(kept_files.fcntl, "flock", flock)
    monkeypatch.setattr(library, "WORTH_A_HEADER", 1)
    assert "compiling 1 C file," in use(tmp_path)[1]
