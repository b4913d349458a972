"""The wide linear maps of a loop on a GPU: their weights, and the gradients of these."""

from __future__ import annotations

from dynbatch.cells.cuda.matrices import DeviceMatrix, matrix_of
from dynbatch.cells.linear_maps import ParameterRows
from dynbatch.compiler.arrays import Scratch
from dynbatch.compiler.ir import Op
from dynbatch.kernels import arrays
from dynbatch.kernels.cuda.runtime.queue import Queue


def wide_weight(op: Op, scratch: Scratch) -> DeviceMatrix:
    """(O, K) rows of all pieces; the parameter itself where there is one piece, all of it."""
    piece, inner = op.pieces[0], op.inputs[0].width
    if len(op.pieces) == 1 and piece.width == piece.weight.shape[0]:
        return matrix_of(piece.weight.value)
    wide = scratch.take(op.output.width, inner)
    for piece in op.pieces:
        rows = piece.weight.value[piece.first : piece.first + piece.width]
        arrays.copy(rows, wide[piece.column : piece.column + piece.width])
    return matrix_of(wide)


def wide_bias(op: Op, scratch: Scratch) -> DeviceMatrix | None:
    """(1, O) sums of all pieces' biases; None without any."""
    if not any([piece.biases for piece in op.pieces]):
        return None
    piece = op.pieces[0]
    if len(op.pieces) == len(piece.biases) == 1 and piece.width == piece.biases[0][0].size:
        return matrix_of(piece.biases[0][0].value.reshape(1, -1))
    wide = scratch.take(1, op.output.width)
    for piece in op.pieces:
        out = wide[0, piece.column : piece.column + piece.width]
        if not piece.biases:
            arrays.fill(out, 0)
        for number, (bias, first) in enumerate(piece.biases):
            part = bias.value[first : first + piece.width]
            if number:
                arrays.accumulate(part, out)
            else:
                arrays.copy(part, out)
    return matrix_of(wide)


def weight_gradients(
    queue: Queue, into: ParameterRows, op: Op, x: DeviceMatrix, dy: DeviceMatrix, rows: int
) -> None:
    """dW = dyᵀ x of every piece, one product each."""
    for piece in op.pieces:
        if piece.weight.frozen:
            continue
        out = into.take(piece.weight, piece.first, piece.width)
        queue.keep(out)
        part = dy.part(0, piece.column, piece.width)
        queue.cublas(out.dtype).gemm(
            True, False, piece.width, x.width, rows,
            part.address, part.stride, x.address, x.stride, 0,
            out.data.ptr, x.width,  # type: ignore[attr-defined]
        )  # fmt: skip


def bias_gradients(queue: Queue, into: ParameterRows, op: Op, dy: DeviceMatrix) -> None:
    """db = Σ dy over all rows, of every bias."""
    trained = [
        (piece, bias, first)
        for piece in op.pieces
        for bias, first in piece.biases
        if not bias.frozen
    ]
    if not trained:
        return
    is_all = len(op.pieces) == len(trained) == 1 and dy.width == dy.stride
    if is_all and trained[0][0].width == trained[0][1].size:
        arrays.sum_rows(dy.array, into.take(trained[0][1], 0, dy.width))
        return
    total = queue.empty((dy.stride,), dy.array.dtype)  # of rows that dy may be some columns of
    arrays.sum_rows(dy.array, total)
    for piece, bias, first in trained:
        start = dy.offset + piece.column
        arrays.copy(total[start : start + piece.width], into.take(bias, first, piece.width))
