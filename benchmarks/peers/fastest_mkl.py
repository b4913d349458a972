"""PyTorch with its MKL at its fastest: by itself that takes slower kernels on AMD's processors."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OPTION = "--fastest-mkl"
HELP = "tell PyTorch's MKL that the processor is Intel's: on AMD's its products are faster then"
# MKL asks this function of its own which vendor made the processor; LD_PRELOAD answers for it.
_VENDOR_CHECK = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def run_with_fastest_mkl(module: str, arguments: Sequence[str]) -> int:
    """Run a module again with the same arguments but `OPTION`; the exit status.

    In a process of its own: MKL chooses its kernels when it is loaded. 2 without a C compiler.
    """
    rest = [argument for argument in arguments if argument != OPTION]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "vendor_check.so"))
        compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"]
        try:
            subprocess.run(compiler, input=_VENDOR_CHECK, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{module}: {OPTION} needs a C compiler: {error}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", module, *rest]
        settings = os.environ | {"LD_PRELOAD": library}
        return subprocess.run(command, env=settings, check=False).returncode
