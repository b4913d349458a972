"""Arrays that lie in a file: memory-mapped, so that the system reads what is looked at."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address


def let_go(array: Array) -> None:
    """Give back the memory that a dense array of a mapped file takes; other arrays stay.

    Whoever reads it later has it from the file again, or from what the system still has of that. A
    map that can be written to stays, too: the file may lack what was written (`mmap_mode="c"`).
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if not (isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise") and array.size):
        return
    whole = np.frombuffer(mapped, np.uint8)
    if whole.flags.writeable:
        return
    start = (address(array) or 0) - (address(whole) or 0)
    page = start % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, start - page, array.nbytes + page)
