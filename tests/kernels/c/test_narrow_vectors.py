"""All tests of the C kernels again, compiled for processors with narrower vectors."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dynbatch.kernels.c.runtime.compiler import VARIABLE

FOLDER = Path(__file__).parent


@pytest.mark.exhaustive
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx"])
def test_kernels_compiled_without_wide_vectors_are_as_right(without: str, tmp_path: Path) -> None:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("only x86-64 has vectors of several widths")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(FOLDER)]
    environment = {**os.environ, "DYNBATCH_CACHE": str(tmp_path), VARIABLE: without}
    for ignored in ("runtime", "test_sanitizers.py", Path(__file__).name):
        command += ["--ignore", str(FOLDER / ignored)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert " passed" in result.stdout and " skipped" not in result.stdout
