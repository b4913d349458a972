"""All tests of the C kernels again: for processors with narrower vectors, by other compilers."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynbatch.kernels.c.runtime.compiler import VARIABLE

FOLDER = Path(__file__).parent
# The command of each compiler, and whether it is here.
COMPILERS = {
    "clang": ("clang", shutil.which("clang") is not None),
    "zig": (f"{sys.executable} -m ziglang cc", importlib.util.find_spec("ziglang") is not None),
}


def assert_kernels_are_right(cache: Path, **variables: str) -> None:
    """Run the tests of the kernels in a process with these variables."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(FOLDER)]
    for ignored in ("runtime", "test_sanitizers.py", Path(__file__).name):
        command += ["--ignore", str(FOLDER / ignored)]
    environment = {**os.environ, "DYNBATCH_CACHE": str(cache), **variables}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert " passed" in result.stdout and " skipped" not in result.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx"])
def test_kernels_compiled_without_wide_vectors_are_as_right(without: str, tmp_path: Path) -> None:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("only x86-64 has vectors of several widths")
    assert_kernels_are_right(tmp_path, **{VARIABLE: without})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMPILERS)
def test_kernels_of_another_compiler_are_as_right(name: str, tmp_path: Path) -> None:
    command, is_here = COMPILERS[name]
    if not is_here:
        pytest.skip(f"there is no {name}")
    assert_kernels_are_right(tmp_path, CC=command)
