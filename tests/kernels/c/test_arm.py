"""The C sources compile for ARM, whose vectors are those of 16 bytes. Nothing is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynbatch.kernels.c.runtime import source
from dynbatch.kernels.c.runtime.compiler import FLAGS
from dynbatch.kernels.c.runtime.library import ROUNDING
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS

ROUNDED = {name: bits for name, bits in MANTISSA_BITS.items() if name != FULL}
TARGET = ("-target", "aarch64-linux-gnu")


@pytest.mark.exhaustive
@pytest.mark.parametrize("scalar", ["float", "double"])
def test_all_sources_compile_for_arm(scalar: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="zig compiles for other processors: dynbatch[compiler]")
    command = [sys.executable, "-m", "ziglang", "cc", *TARGET, *FLAGS, "-c", "-o", os.devnull]
    folders = {f"ZIG_{kind}_CACHE_DIR": str(tmp_path) for kind in ("GLOBAL", "LOCAL")}
    units = [(name, 0) for name in source.names()]
    units += [(name, bits) for name in ROUNDING for bits in ROUNDED.values()]
    for name, bits in units:
        result = subprocess.run(
            [*command, "-x", "c", "-"],
            input=source.join(name, source.read(name), scalar, bits),
            capture_output=True,
            text=True,
            env={**os.environ, **folders},
        )
        assert result.returncode == 0, f"{name}: {result.stderr}"
