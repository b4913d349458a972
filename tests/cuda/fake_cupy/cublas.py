"""`cupy.cuda.cublas`: the products of cuBLAS by its rules, computed by NumPy.

Matrices are column-major: element (i, j) is at `address + (i + j * ld) * itemsize`. What cuBLAS
leaves undefined is an error here.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

import numpy as np

from dynbatch.kernels.runtime.precision import round_to
from tests.cuda.fake_cupy.memory import buffers, require_device
from tests.cuda.fake_cupy.stream import get_current_stream

__all__ = [
    "CUBLAS_COMPUTE_32F_FAST_16BF",
    "CUBLAS_COMPUTE_32F_FAST_TF32",
    "CUBLAS_DEFAULT_MATH",
    "CUBLAS_GEMM_DEFAULT",
    "CUBLAS_OP_N",
    "CUBLAS_OP_T",
    "CUBLAS_POINTER_MODE_HOST",
    "CUBLASError",
    "create",
    "destroy",
    "dgemm",
    "dgemmStridedBatched",
    "gemmEx",
    "getMathMode",
    "getPointerMode",
    "setMathMode",
    "setPointerMode",
    "sgemm",
    "sgemmStridedBatched",
]

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_POINTER_MODE_HOST = 0
CUBLAS_DEFAULT_MATH = 0
CUBLAS_COMPUTE_32F_FAST_16BF = 75
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUBLAS_GEMM_DEFAULT = -1
CUDA_R_32F = 0

PRECISIONS = {CUBLAS_COMPUTE_32F_FAST_16BF: "bfloat16", CUBLAS_COMPUTE_32F_FAST_TF32: "tf32"}

NO_STREAM = -1  # a handle that no product has used yet

_handles: dict[int, dict[str, int]] = {}
_new_handle = itertools.count(1 << 40, 64)
_of_device: list[int] = []


class CUBLASError(RuntimeError):
    """`cupy.cuda.cublas.CUBLASError`."""


class _Matrices(NamedTuple):
    """`count` matrices of `rows` by `columns` as stored, `step` elements apart."""

    address: int
    rows: int
    columns: int
    ld: int
    step: int
    count: int
    dtype: np.dtype[Any]

    def spans(self) -> list[tuple[int, int]]:
        """First and last byte of each."""
        size = self.dtype.itemsize
        span = ((self.columns - 1) * self.ld + self.rows) * size
        starts = [self.address + p * self.step * size for p in range(self.count)]
        return [(start, start + span) for start in starts]

    def views(self) -> list[np.ndarray[Any, Any]]:
        strides = (self.dtype.itemsize, self.ld * self.dtype.itemsize)
        return [
            np.ndarray(
                (self.rows, self.columns),
                self.dtype,
                (ctypes.c_uint8 * (end - start)).from_address(start),
                strides=strides,
            )
            for start, end in self.spans()
        ]


def get_cublas_handle() -> int:
    """`cupy.cuda.get_cublas_handle`: that of the current device."""
    if not _of_device:
        _of_device.append(create())
    return _of_device[0]


def create() -> int:
    handle = next(_new_handle)
    _handles[handle] = {
        "pointer": CUBLAS_POINTER_MODE_HOST, "math": CUBLAS_DEFAULT_MATH, "stream": NO_STREAM
    }  # fmt: skip
    return handle


def destroy(handle: int) -> None:
    _state(handle)
    del _handles[handle]


def setPointerMode(handle: int, mode: int) -> None:
    if mode != CUBLAS_POINTER_MODE_HOST:
        raise NotImplementedError("the stand-in reads alpha and beta from the host")
    _state(handle)["pointer"] = mode


def getPointerMode(handle: int) -> int:
    return _state(handle)["pointer"]


def setMathMode(handle: int, mode: int) -> None:
    if mode != CUBLAS_DEFAULT_MATH:
        raise NotImplementedError("the stand-in multiplies in the precision of the operands")
    _state(handle)["math"] = mode


def getMathMode(handle: int) -> int:
    return _state(handle)["math"]


def sgemm(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
) -> None:  # fmt: skip
    _products(
        np.float32, handle, transa, transb, m, n, k, alpha,
        (A, lda, 0), (B, ldb, 0), beta, (C, ldc, 0), 1,
    )  # fmt: skip


def dgemm(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
) -> None:  # fmt: skip
    _products(
        np.float64, handle, transa, transb, m, n, k, alpha,
        (A, lda, 0), (B, ldb, 0), beta, (C, ldc, 0), 1,
    )  # fmt: skip


def gemmEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, Atype: int, lda: int, B: int, Btype: int, ldb: int,
    beta: int, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    if computeType not in PRECISIONS or algo != CUBLAS_GEMM_DEFAULT:
        raise NotImplementedError(f"the stand-in knows no compute type {computeType} or {algo=}")
    if (Atype, Btype, Ctype) != (CUDA_R_32F,) * 3:
        raise NotImplementedError("the stand-in rounds factors of float32 only")
    _products(
        np.float32, handle, transa, transb, m, n, k, alpha,
        (A, lda, 0), (B, ldb, 0), beta, (C, ldc, 0), 1, PRECISIONS[computeType],
    )  # fmt: skip


def sgemmStridedBatched(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, strideA: int, B: int, ldb: int, strideB: int,
    beta: int, C: int, ldc: int, strideC: int, batchCount: int,
) -> None:  # fmt: skip
    _products(
        np.float32, handle, transa, transb, m, n, k, alpha,
        (A, lda, strideA), (B, ldb, strideB), beta, (C, ldc, strideC), batchCount,
    )  # fmt: skip


def dgemmStridedBatched(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, strideA: int, B: int, ldb: int, strideB: int,
    beta: int, C: int, ldc: int, strideC: int, batchCount: int,
) -> None:  # fmt: skip
    _products(
        np.float64, handle, transa, transb, m, n, k, alpha,
        (A, lda, strideA), (B, ldb, strideB), beta, (C, ldc, strideC), batchCount,
    )  # fmt: skip


def _products(
    kind: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: tuple[int, int, int], b: tuple[int, int, int],
    beta: int, c: tuple[int, int, int], count: int, precision: str = "",
) -> None:  # fmt: skip
    """C = alpha op(A) op(B) + beta C, enqueued on the current stream.

    Factors are rounded to a precision as instructions of tensor cores' programs do, and summed in
    float32. What cuBLAS itself does is not documented: see docs/design/cuda.md.
    """
    dtype = np.dtype(kind)
    _require_one_stream(handle)
    for number in (transa, transb, m, n, k, a[1], b[1], c[1], count):
        if not isinstance(number, int) or not -(1 << 31) <= number < 1 << 31:
            raise TypeError(f"{number!r} is no 32-bit int")
    if min(m, n, k, count) <= 0:
        raise CUBLASError(f"m, n, k, batchCount are {m}, {n}, {k}, {count}: not above 0")
    if transa not in (CUBLAS_OP_N, CUBLAS_OP_T) or transb not in (CUBLAS_OP_N, CUBLAS_OP_T):
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: operations {transa}, {transb}")
    left = _matrices("A", a, (k, m) if transa else (m, k), count, dtype)
    right = _matrices("B", b, (n, k) if transb else (k, n), count, dtype)
    target = _matrices("C", c, (m, n), count, dtype)
    _require_apart(target, left, right)
    scale, old = _scalar(alpha, dtype), _scalar(beta, dtype)

    def work() -> None:
        for x, y, z in zip(left.views(), right.views(), target.views(), strict=True):
            if precision:
                x, y = round_to(x, precision), round_to(y, precision)
            product = scale * ((x.T if transa else x) @ (y.T if transb else y))
            z[...] = product + old * z if old else product  # beta = 0: C is not read

    get_current_stream().enqueue(work)


def _require_one_stream(handle: int) -> None:
    """A handle's workspace is not shared by streams; cuBLAS would let them, and change bits."""
    state, stream = _state(handle), get_current_stream().ptr
    if state["stream"] not in (NO_STREAM, stream):
        raise CUBLASError(f"a handle of stream {state['stream']:#x} is used on {stream:#x}")
    state["stream"] = stream


def _state(handle: int) -> dict[str, int]:
    if handle not in _handles:
        raise CUBLASError(f"CUBLAS_STATUS_NOT_INITIALIZED: no handle {handle!r}")
    return _handles[handle]


def _matrices(
    name: str, given: tuple[int, int, int], shape: tuple[int, int], count: int, dtype: Any
) -> _Matrices:
    """An operand, after cuBLAS's rules: a leading dimension, and all of it in device memory."""
    address, ld, step = given
    if not isinstance(address, int) or not isinstance(step, int):
        raise TypeError(f"{name}: address and stride are ints, not {address!r} and {step!r}")
    if ld < shape[0]:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: ld{name.lower()} {ld} < {shape[0]} rows")
    if address % dtype.itemsize:
        raise CUBLASError(f"{name} is not aligned: {address:#x}")
    found = _Matrices(address, *shape, ld, step, count, dtype)
    for start, end in found.spans():
        require_device(start, end - start)
    return found


def _require_apart(target: _Matrices, *sources: _Matrices) -> None:
    """C may share no element with A or B, nor its planes with each other.

    Columns side by side in one wider matrix are apart, although their spans overlap.
    """
    for source in sources:
        for x in source.views():
            for z in target.views():
                if np.shares_memory(x, z):
                    raise CUBLASError("C overlaps A or B")
    spans = sorted(target.spans())
    if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
        views = target.views()
        if any(np.shares_memory(x, z) for x, z in itertools.combinations(views, 2)):
            raise CUBLASError("planes of C overlap")


def _scalar(address: int, dtype: np.dtype[Any]) -> Any:
    """alpha or beta, which a host pointer gives when the function is called."""
    if not isinstance(address, int) or address % dtype.itemsize or not address:
        raise TypeError(f"alpha and beta are addresses, not {address!r}")
    if any(low <= address < high for low, high in buffers()):
        raise CUBLASError("alpha and beta are of the device; the pointer mode says of the host")
    return dtype.type(
        np.frombuffer((ctypes.c_uint8 * dtype.itemsize).from_address(address), dtype)[0]
    )
