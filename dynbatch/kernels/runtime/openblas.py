"""The OpenBLAS inside NumPy: its thread setting, kernel names, and the product that adds."""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

# Of cblas.h: CblasRowMajor, CblasNoTrans, CblasTrans.
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112

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
