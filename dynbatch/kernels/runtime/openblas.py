"""The OpenBLAS inside NumPy: thread counts, kernel names, and the product that adds.

dynbatch shards its own work over its own pool, so each product runs on one BLAS thread.
`one_thread()` sets that for the time of a run and restores what it found.
"""

from __future__ import annotations

import ctypes
import glob
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np

from dynbatch.recent import free_at_fork

# Of cblas.h: CblasRowMajor, CblasNoTrans, CblasTrans.
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112

# How often each thread is inside of `one_thread`, and how many BLAS used before the first of them.
_inside: Counter[int] = Counter()
_before = 1
_lock = free_at_fork(threading.Lock())


Function = Callable[..., int]


class OpenBlas(NamedTuple):
    """A loaded library, and the prefix and suffix of its symbols."""

    library: ctypes.CDLL
    prefix: str
    suffix: str

    def function(self, name: str) -> Function | None:
        """The function of that name, returning an int; None if there is none."""
        return getattr(self.library, f"{self.prefix}{name}{self.suffix}", None)


@cache
def openblas() -> OpenBlas | None:
    """The OpenBLAS that NumPy's wheel carries, or None."""
    root = os.path.dirname(os.path.dirname(np.__file__))
    for path in sorted(glob.glob(os.path.join(root, "numpy.libs", "*openblas*"))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            if hasattr(library, f"{prefix}openblas_set_num_threads{suffix}"):
                return OpenBlas(library, prefix, suffix)
    return None


@cache
def core_name() -> str:
    """Name of the kernels that OpenBLAS chose for this processor, or "unknown"."""
    library = openblas()
    function = None if library is None else library.function("openblas_get_corename")
    if function is None:
        return "unknown"
    function.restype = ctypes.c_char_p  # type: ignore[attr-defined]
    name: bytes = function()  # type: ignore[assignment]
    return name.decode()


@cache
def has_small_products() -> bool:
    """Whether this OpenBLAS multiplies small float32 matrices without packing them."""
    return core_name() in ("SkylakeX", "Cooperlake", "SapphireRapids")


@cache
def gemm(dtype: str) -> Function | None:
    """OpenBLAS's `cblas_sgemm` ("f") or `cblas_dgemm` ("d"), or None; it releases the GIL."""
    letter, real = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}.get(dtype, ("", None))
    library = openblas()
    if library is None or real is None:
        return None
    function = library.function(f"cblas_{letter}gemm")
    if function is not None:
        size = ctypes.c_int64 if library.suffix == "64_" else ctypes.c_int
        matrix = [ctypes.c_void_p, size]
        sizes = [*[ctypes.c_int] * 3, *[size] * 3]
        function.restype = None  # type: ignore[attr-defined]
        function.argtypes = [*sizes, real, *matrix, *matrix, real, *matrix]  # type: ignore[attr-defined]
    return function


@cache
def thread_setting() -> tuple[Function, Function] | None:
    """The functions that get and set BLAS's number of threads, or None."""
    library = openblas()
    if library is None:
        return None
    get = library.function("openblas_get_num_threads")
    put = library.function("openblas_set_num_threads")
    return None if get is None or put is None else (get, put)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run BLAS on one thread inside the block, and restore its threads afterwards.

    BLAS has one setting for the process. If several Python threads are inside, the first sets it,
    and the last to leave restores what the first found. In a forked child only the thread that
    forked is still inside.
    """
    global _before
    setting = thread_setting()
    if setting is None:
        yield
        return
    get, put = setting
    thread = threading.get_ident()
    is_counted = False
    try:
        with _lock:
            is_first = not _inside.total()
            # At once: an interrupt may come after any call.
            _inside[thread], is_counted = _inside[thread] + 1, True
            if is_first:
                _before = get()
            if _before != 1:
                put(1)
        yield
    finally:
        with _lock:
            _leave(thread, is_counted, put)


def _leave(thread: int, times: int, put: Function) -> None:
    """Leave the block `times` times; the last thread to leave restores BLAS's threads."""
    _inside[thread] -= times
    if not _inside[thread]:
        del _inside[thread]
    if not _inside and _before != 1:
        put(_before)


def _forget_other_threads() -> None:
    """In a forked child, count only the thread that forked."""
    thread = threading.get_ident()
    others = _inside.keys() - {thread}
    if not others:
        return
    for other in others:
        del _inside[other]
    setting = thread_setting()
    if setting is not None:
        _leave(thread, 0, setting[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
