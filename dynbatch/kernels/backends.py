"""`backends()`: what kernels can run on here, and what to install for the others."""

from __future__ import annotations

import numpy as np

from dynbatch import backend
from dynbatch.errors import BackendError
from dynbatch.kernels.blas import is_batch_invariant
from dynbatch.kernels.c.blas import instruction
from dynbatch.kernels.c.runtime import cache, library, shipped
from dynbatch.kernels.c.runtime.compiler import compiler
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.precision import FULL, of_matmul


def backends() -> dict[str, str]:
    """The state of each backend by name: "numpy", "c" and "cuda", each with a sentence.

    NumPy is always there. C takes its place on the CPU: compiled at its first use where there is a
    compiler, else as a platform's wheel brings it. CUDA runs graphs with `device="cuda"`.

    Example:
        >>> import dynbatch as db
        >>> db.backends()["numpy"].startswith("NumPy ")
        True
    """
    return {"numpy": f"NumPy {np.__version__}", "c": _c(), "cuda": _cuda()}


def without_c() -> str:
    """A line that says why NumPy runs in place of C, or "" if C runs."""
    why = reason()
    return f"NumPy runs in place of C kernels, which are faster: {why}" if why else ""


def reason() -> str:
    """The reason why no C runs, or "" if it does."""
    return library.reason()


def rounding(matmul: str | None, precision: str = FULL, on_gpu: bool = False) -> str:
    """The rounding of values, and of factors of products with weights; "" if there is none.

    Example:
        >>> rounding("float32"), rounding("tf32", on_gpu=True)
        ('', 'factors of tf32 by tensor cores')
        >>> rounding(None, "bfloat16", on_gpu=True)
        'values in bfloat16, factors of bfloat16 by tensor cores'
    """
    values = "" if precision == FULL else f"values in {precision}"
    return ", ".join(filter(None, [values, factors(of_matmul(matmul, precision), on_gpu)]))


def factors(matmul: str, on_gpu: bool = False) -> str:
    """The rounding of factors of products with weights, and who does it; "" if there is none."""
    if matmul == FULL:
        return ""
    by = "emulated in C"
    if on_gpu:
        by = "by tensor cores"
    elif reason():
        by = "emulated by NumPy"
    elif name := instruction(matmul):
        by = f"by {name}"
    return f"factors of {matmul} {by}"


def _c() -> str:
    why, chosen = reason(), compiler()
    if why:
        return f"off: {why}"
    if chosen is None or not library.compiles():
        best = shipped.levels()[0]
        return f"the wheel's, for {best}; cells run operator by operator: {library.no_compiler()}"
    return f"compiled by {' '.join(chosen.command)}, kept in {cache.folder()}"


def _cuda() -> str:
    try:
        module = backend.device("cuda").xp
    except BackendError as error:
        return f"off: {str(error).splitlines()[0]}"
    return f"CuPy {module.__version__}"


def settings() -> tuple[int, bool, bool]:
    """The settings of a process that plans and recorded calls follow from: threads, BLAS, C."""
    return parallel.available(), is_batch_invariant(), not reason()
