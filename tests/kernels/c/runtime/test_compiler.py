"""A header that is compiled once for many sources."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.c.runtime import cache, source
from dynbatch.kernels.c.runtime.compiler import Compiler, compiler


@pytest.fixture
def chosen() -> Compiler:
    if (command := compiler()) is None:
        pytest.skip("there is no C compiler")
    return command


def test_a_precompiled_header_changes_no_byte(chosen: Compiler, tmp_path: Path) -> None:
    text = source.join("clipping.c", source.read("clipping.c"), "float")
    header = chosen.precompile(tmp_path)
    assert header is not None
    with_it, without = tmp_path / "with.so", tmp_path / "without.so"
    chosen.compile(text, with_it, header)
    chosen.compile(text, without)
    assert with_it.read_bytes() == without.read_bytes()


def test_a_header_that_cannot_be_read_is_left_out(chosen: Compiler, tmp_path: Path) -> None:
    chosen.compile("int one;\n", tmp_path / "one.so", tmp_path / "nowhere.h")
    assert (tmp_path / "one.so").stat().st_size


def test_what_the_compiler_refuses_without_the_header_is_an_error(
    chosen: Compiler, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match="fails:"):
        chosen.compile("int one\n", tmp_path / "one.so", tmp_path / "nowhere.h")
    assert chosen._replace(command=("false",)).precompile(tmp_path) is None


def test_a_compiler_in_a_folder_whose_name_has_a_space_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "Program Files" / "cc"
    path.parent.mkdir()
    shutil.copy(sys.executable, path)
    monkeypatch.delenv("DYNBATCH_NATIVE", raising=False)
    for name, command in (
        (str(path), (str(path),)),
        (f"{sys.executable}  -m", (sys.executable, "-m")),
    ):
        monkeypatch.setenv("CC", name)
        assert compiler.__wrapped__().command == command


def test_where_a_system_has_no_owners_of_files_a_folder_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)  # as each folder of Windows looks
    assert not cache.is_private(tmp_path)
    monkeypatch.delattr(os, "geteuid")
    assert cache.is_private(tmp_path)
