"""A header that is compiled once for many sources."""

from pathlib import Path

import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.compiler import Compiler, compiler


@pytest.fixture
def chosen() -> Compiler:
    found = compiler()
    assert found is not None
    return found


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
