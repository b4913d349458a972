"""All tests of the C kernels again, compiled with the address and undefined-behaviour sanitizers.

NumPy allocates each array apart, so that one element beyond an array is found.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynbatch.kernels.c.runtime.compiler import VARIABLE

FOLDER = Path(__file__).parent
LOOPS = FOLDER.parents[1] / "compiler" / "c"
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def preloaded() -> str:
    """The sanitizer's library, which has to be there before Python is."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the sanitizers cannot be tried")
    asked = ["gcc", "-print-file-name=libasan.so"]
    path = Path(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    if not path.is_absolute() or not path.exists():
        pytest.skip("no libasan: the sanitizers cannot be tried")
    return str(path.resolve())


def run(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """A Python process whose C kernels are watched."""
    environment = {
        **os.environ,
        "CC": "gcc",
        "DYNBATCH_CACHE": str(cache),
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
        VARIABLE: FLAGS,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.exhaustive
@pytest.mark.parametrize("folder", [FOLDER, LOOPS], ids=["kernels", "loops"])
def test_no_kernel_leaves_its_arrays_or_does_what_c_leaves_undefined(
    folder: Path, tmp_path: Path
) -> None:
    tests = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--ignore", __file__]
    result = run(*tests, "--ignore", str(FOLDER / "runtime"), str(folder), cache=tmp_path)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert " passed" in result.stdout and " skipped" not in result.stdout


BEYOND = """
import numpy as np
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.c.runtime.arrays import address
body = '#include "common.h"\\nEXPORT void set(REAL* out) { out[3] = 1; }\\n'
out = np.zeros(3, np.float32)
library.Library("beyond.c", body).functions(out.dtype).set(address(out))
"""


@pytest.mark.exhaustive
def test_an_element_beyond_an_array_is_found(tmp_path: Path) -> None:
    result = run("-c", BEYOND, cache=tmp_path)
    assert result.returncode and "heap-buffer-overflow" in result.stderr
