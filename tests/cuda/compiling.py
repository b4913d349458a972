"""Processes that need one kernel at the same time do not compile it all at once.

CuPy keeps what it compiled in a folder, which every process looks into first; while one compiles,
the others wait, and then find it there.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dynbatch.kernels.cuda.runtime.launch import Kernels
from tests.cuda.cache import alone


@contextmanager
def one_compiles(folder: Path | None = None) -> Iterator[set[str]]:
    """Inside, no two processes of this user compile one module for one element type together.

    Gives the names of the kernels that this process has loaded inside, which grow.
    """
    loaded: set[str] = set()
    locks = folder or Path(tempfile.gettempdir(), f"dynbatch-{os.getuid()}", "compiling")
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    compile_one = Kernels.compile

    def compile_alone(self: Kernels, name: str) -> Any:
        key = hashlib.sha256(f"{self.dtype} {self.text(name)}".encode()).hexdigest()[:24]
        with alone(locks / f"{key}.lock"):
            loaded.add(name)
            return compile_one(self, name)

    with mock.patch.object(Kernels, "compile", compile_alone):
        yield loaded
