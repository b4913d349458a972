"""`CudaKernel`: a CUDA kernel from a source text of the user's own."""

from __future__ import annotations

import linecache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dynbatch.caller import users_frame
from dynbatch.errors import ArgumentError, DtypeError, DynbatchError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import Dimensions as Dimensions
from dynbatch.kernels.cuda.runtime.packing import SCALARS
from dynbatch.kernels.cuda.runtime.packing import Arguments as Arguments
from dynbatch.kernels.cuda.runtime.queue import queue

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
FORM = 'extern "C" __global__ void NAME(const REAL* x, …)'
MOST_THREADS = 1024
MOST_DIMENSIONS = 3


class CudaKernel:
    """A CUDA kernel of your own, from its source text; `Batch.launch` starts it.

    NVRTC compiles the text when a kernel of it is first launched, once for each element type:
    `REAL` is float in a graph of float32, and double in one of float64. CuPy keeps what was
    compiled on disk. To make the object takes neither a GPU nor CuPy.

    Args:
        text: CUDA C++17, with one or more kernels `extern "C" __global__ void NAME(…)`. Their
            parameters are pointers and numbers (bool, int, unsigned, long long, unsigned long long,
            float, double, REAL).
        name: which of its kernels; needed where there are several.

    Attributes:
        name: of the kernel.

    Raises:
        ArgumentError: the text has no such kernel, or several and no name was given.
        DtypeError:    a parameter is neither a pointer nor such a number.

    Example:
        >>> import dynbatch as db
        >>> db.CudaKernel('''
        ...     extern "C" __global__ void twice(const REAL* x, REAL* y, int n) {
        ...         const int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...         if (i < n) y[i] = 2 * x[i];
        ...     }''')
        CudaKernel('twice', takes x, y, n)
    """

    __slots__ = ("_key", "_parameters", "_source", "name")

    def __init__(self, text: str, name: str | None = None) -> None:
        if not isinstance(text, str):
            raise ArgumentError.at_caller(
                f"CudaKernel: a source text expected, not {text!r}.\n"
                "  fix:  CudaKernel(text), or CudaKernel(Path(file).read_text()) of a file"
            )
        self._source = source.own(text, _origin(text))
        keys = {source.name_of(key): key for key in self._source.kernels}
        if name is None and len(keys) == 1:
            (name,) = keys
        if name is None or name not in keys:
            problem = "several kernels and no name" if keys and name is None else "no such kernel"
            raise ArgumentError.at_caller(
                f"CudaKernel: {problem}; the text has {', '.join(keys) or 'none'}.\n"
                f"  rule: a kernel begins with {FORM}\n"
                "  fix:  CudaKernel(text, name) with a name from the text"
            )
        self.name = name
        self._key = keys[name]
        self._parameters = self._source.kernels[self._key]
        for parameter in self._parameters:
            is_number = parameter.type == "REAL" or parameter.type in SCALARS
            if not (parameter.name.isidentifier() and (parameter.is_pointer or is_number)):
                raise DtypeError.at_caller(
                    f"kernel {name}: parameter `{parameter.type} {parameter.name}` is neither a "
                    f"pointer nor a number.\n  rule: numbers are {', '.join(SCALARS)}, REAL\n"
                    "  fix:  pass a pointer, `const float* x`, or the fields as several numbers"
                )

    def __repr__(self) -> str:
        names = ", ".join([parameter.name for parameter in self._parameters]) or "nothing"
        return f"CudaKernel({self.name!r}, takes {names})"

    def launch(
        self,
        dtype: DTypeLike,
        grid: int | Dimensions,
        block: int | Dimensions,
        args: Arguments,
        shared: int,
    ) -> None:
        """Write a launch on the GPU's stream; see `Batch.launch`."""
        stream, problem = queue(), self._problem(grid, block, args)
        if problem is not None:
            error, told = problem
            raise error(f"{stream.label or 'no node'}: kernel {self.name}: {told}")
        stream.kernels(dtype).add(self._source)
        stream.launch(dtype, self._key, _dimensions(grid), _dimensions(block), args, shared)

    def _problem(
        self, grid: int | Dimensions, block: int | Dimensions, args: Arguments
    ) -> tuple[type[DynbatchError], str] | None:
        """An error and its text, if grid, block or a table can be seen to be wrong."""
        for what, extents in (("grid", _dimensions(grid)), ("block", _dimensions(block))):
            are_sizes = all([isinstance(n, int | np.integer) and n >= 0 for n in extents])
            if not (are_sizes and 0 < len(extents) <= MOST_DIMENSIONS):
                return ShapeError, (
                    f"{what} {extents}.\n"
                    "  rule: an integer from 0 on, or a tuple of one to three of them\n"
                    "  fix:  -(-rows // 32) rounds up, and is an integer"
                )
        if prod(_dimensions(block)) > MOST_THREADS:
            return ShapeError, (
                f"a block of {block} threads.\n"
                f"  rule: at most {MOST_THREADS} in all\n  fix:  smaller blocks, and more of them"
            )
        for parameter, value in zip(self._parameters, args, strict=False):
            is_written = parameter.is_pointer and not parameter.is_read_only
            if is_written and isinstance(value, np.ndarray):
                declared = f"{parameter.type}* {parameter.name}"
                return DtypeError, (
                    f"`{declared}` is given an array of NumPy.\n"
                    "  rule: it is copied to the GPU; what a kernel writes there is lost\n"
                    f"  fix:  `const {declared}`; or an array on the GPU, as y.values is"
                )
        return None


def _dimensions(extents: int | Dimensions) -> Dimensions:
    """A grid or block as a tuple."""
    return extents if isinstance(extents, tuple) else (extents,)


def _origin(text: str) -> tuple[str, int]:
    """File and line in which a text begins, if it stands in the file of the line that gave it."""
    frame, _ = users_frame()
    if frame is not None:
        file = frame.f_code.co_filename
        before, match, _ = "".join(linecache.getlines(file, frame.f_globals)).partition(text)
        if match:
            return file, before.count("\n") + 1
    return "the text of CudaKernel", 1
