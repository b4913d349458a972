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
from tests.cuda.fake_cupy.memory import buffers, require_current, require_device
from tests.cuda.fake_cupy.stream import current_device, get_current_stream

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
    "dgemmBatched",
    "gemmEx",
    "getMathMode",
    "getPointerMode",
    "setMathMode",
    "setPointerMode",
    "sgemm",
    "sgemmBatched",
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
_of_device: dict[int, int] = {}


class CUBLASError(RuntimeError):
    """`cupy.cuda.cublas.CUBLASError`."""


class _Matrix(NamedTuple):
    """A matrix of `rows` by `columns` as stored."""

    address: int
    rows: int
    columns: int
    ld: int
    dtype: np.dtype[Any]

    def span(self) -> tuple[int, int]:
        """The first byte and the end of the matrix."""
        size = ((self.columns - 1) * self.ld + self.rows) * self.dtype.itemsize
        return self.address, self.address + size

    def view(self) -> np.ndarray[Any, Any]:
        start, end = self.span()
        strides = (self.dtype.itemsize, self.ld * self.dtype.itemsize)
        memory = (ctypes.c_uint8 * (end - start)).from_address(start)
        return np.ndarray((self.rows, self.columns), self.dtype, memory, strides=strides)


def get_cublas_handle() -> int:
    """`cupy.cuda.get_cublas_handle`: that of the current device."""
    device = current_device()
    if device not in _of_device:
        _of_device[device] = create()
    return _of_device[device]


def create() -> int:
    handle = next(_new_handle)
    _handles[handle] = {
        "pointer": CUBLAS_POINTER_MODE_HOST, "math": CUBLAS_DEFAULT_MATH, "stream": NO_STREAM,
        "device": current_device(),
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
        np.float32, handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc
    )  # fmt: skip


def dgemm(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, A: int, lda: int, B: int, ldb: int, beta: int, C: int, ldc: int,
) -> None:  # fmt: skip
    _products(
        np.float64, handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc
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
        np.float32, handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc,
        precision=PRECISIONS[computeType],
    )  # fmt: skip


def sgemmBatched(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, Aarray: int, lda: int, Barray: int, ldb: int,
    beta: int, Carray: int, ldc: int, batchCount: int,
) -> None:  # fmt: skip
    _products(
        np.float32, handle, transa, transb, m, n, k, alpha, Aarray, lda, Barray, ldb, beta, Carray,
        ldc, batchCount,
    )  # fmt: skip


def dgemmBatched(
    handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, Aarray: int, lda: int, Barray: int, ldb: int,
    beta: int, Carray: int, ldc: int, batchCount: int,
) -> None:  # fmt: skip
    _products(
        np.float64, handle, transa, transb, m, n, k, alpha, Aarray, lda, Barray, ldb, beta, Carray,
        ldc, batchCount,
    )  # fmt: skip


def _products(
    kind: Any, handle: int, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
    count: int | None = None, precision: str = "",
) -> None:  # fmt: skip
    """C = alpha op(A) op(B) + beta C, enqueued on the current stream.

    Factors are rounded to a precision as instructions of tensor cores' programs do, and summed in
    float32. What cuBLAS itself does is not documented: see docs/design/cuda.md.

    With a count, a, b and c are arrays of so many addresses, which the device reads.
    """
    dtype = np.dtype(kind)
    if get_current_stream().is_capturing():
        raise NotImplementedError("CuPy lets no call of cuBLAS be captured")
    _require_one_stream(handle)
    for number in (transa, transb, m, n, k, lda, ldb, ldc, 1 if count is None else count):
        if not isinstance(number, int) or not -(1 << 31) <= number < 1 << 31:
            raise TypeError(f"{number!r} is no 32-bit int")
    if min(m, n, k, 1 if count is None else count) <= 0:
        raise CUBLASError(f"m, n, k, batchCount are {m}, {n}, {k}, {count}: not above 0")
    if transa not in (CUBLAS_OP_N, CUBLAS_OP_T) or transb not in (CUBLAS_OP_N, CUBLAS_OP_T):
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: operations {transa}, {transb}")
    shapes = (k, m) if transa else (m, k), (n, k) if transb else (k, n), (m, n)
    operands = list(zip("ABC", (a, b, c), shapes, (lda, ldb, ldc), strict=True))
    for name, address, shape, ld in operands:
        if not isinstance(address, int):
            raise TypeError(f"{name}: addresses are ints, not {address!r}")
        if ld < shape[0]:
            raise CUBLASError(
                f"CUBLAS_STATUS_INVALID_VALUE: ld{name.lower()} {ld} < {shape[0]} rows"
            )
        if count is not None:
            require_device(address, 8 * count)
            require_current(address)
    scale, old = _scalar(alpha, dtype), _scalar(beta, dtype)

    def found() -> list[list[_Matrix]]:
        """A, B and C of each product."""
        if count is None:
            lists = [[address] for _, address, _, _ in operands]
        else:
            lists = [list((ctypes.c_uint64 * count).from_address(each[1])) for each in operands]
        rows = [
            [
                _matrix(name, address, shape, ld, dtype)
                for address, (name, _, shape, ld) in zip(addresses, operands, strict=True)
            ]
            for addresses in zip(*lists, strict=True)
        ]
        _require_apart([row[2] for row in rows], [matrix for row in rows for matrix in row[:2]])
        return rows

    known = found() if count is None else None  # what the host can know, it is told at once

    def work() -> None:
        for row in known or found():
            x, y, z = [matrix.view() for matrix in row]
            if precision:
                x, y = round_to(x, precision), round_to(y, precision)
            with np.errstate(all="ignore"):  # a device warns of no NaN, least of all while freeing
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
    if _handles[handle]["device"] != current_device():
        raise CUBLASError(f"a handle of GPU {_handles[handle]['device']} is used on another")
    return _handles[handle]


def _matrix(name: str, address: int, shape: tuple[int, int], ld: int, dtype: Any) -> _Matrix:
    """An operand, all of it in device memory."""
    if address % dtype.itemsize:
        raise CUBLASError(f"{name} is not aligned: {address:#x}")
    found = _Matrix(address, *shape, ld, dtype)
    start, end = found.span()
    require_device(start, end - start)
    return found


def _require_apart(targets: list[_Matrix], sources: list[_Matrix]) -> None:
    """A sum may share no element with a factor of any product, nor with another sum.

    Columns side by side in one wider matrix are apart, although their spans overlap.
    """
    written = [target.view() for target in targets]
    for source in sources:
        if any([np.shares_memory(source.view(), target) for target in written]):
            raise CUBLASError("C overlaps A or B")
    for one, other in itertools.combinations(written, 2):
        if np.shares_memory(one, other):
            raise CUBLASError("the planes of C overlap")


def _scalar(address: int, dtype: np.dtype[Any]) -> Any:
    """alpha or beta, which a host pointer gives when the function is called."""
    if not isinstance(address, int) or address % dtype.itemsize or not address:
        raise TypeError(f"alpha and beta are addresses, not {address!r}")
    if any(low <= address < high for low, high in buffers()):
        raise CUBLASError("alpha and beta are of the device; the pointer mode says of the host")
    return dtype.type(
        np.frombuffer((ctypes.c_uint8 * dtype.itemsize).from_address(address), dtype)[0]
    )
