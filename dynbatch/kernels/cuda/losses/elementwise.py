"""CUDA versions of `kernels/losses/elementwise.py`: losses, and picked log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.cuda.walks import over_elements, over_segments, reduce_parts
from dynbatch.kernels.losses.elementwise import LOSSES
from dynbatch.kernels.matrices import Segments
from dynbatch.kernels.scalar.c_printer import CudaPrinter
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.kernels.segment import sum_segments

LOSS = """
// out[k] = the sum of f(x_i, t_i) over the elements i of segment k; width is 1.
extern "C" __global__ void {name}_loss(const REAL* x, const REAL* t, REAL* out, const int* offsets,
    int length, int count, int width) {{
    sum_each([=](long long i) {{ return {name}_of(x[i], t[i]); }}, out,
             {{offsets, length, count, width}});
}}
"""

GRADIENT = """
// out_i = dy[k] f'(x_i, t_i), the derivative by {value}; width is 1.
extern "C" __global__ void {name}_loss_backward_{value}(const REAL* dy, const REAL* x,
    const REAL* t, REAL* out, const int* offsets, int length, int count, int width,
    long long total) {{
    over_elements(
        {{offsets, length, count, width}}, total, [=](int k, long long, int, long long i) {{
            out[i] = {name}_back_{value}(dy[k], x[i], t[i]);
        }});
}}
"""


def _generate() -> Iterator[str]:
    yield CudaPrinter().pairs(LOSSES.values())
    for f in LOSSES.values():
        yield LOSS.format(name=f.name)
        yield from [GRADIENT.format(name=f.name, value=value) for value in f.names]


SOURCE: CudaSource = join("pair_losses.cu", "".join(_generate()))


def pair_loss(pair: Pair, x: Array, t: Array, offsets: Array, out: Array) -> None:
    """out[k] = Σ f(x_i, t_i) over the elements of segment k: one launch unless one is very long."""
    elements = x.reshape(-1, 1)
    queue().kernels(x.dtype).add(SOURCE)

    def reduce(rows: Array, offsets: Segments, out: Array) -> None:
        if rows is elements:
            over_segments(f"{pair.name}_loss", (x, t, out), offsets, 1)
        else:
            sum_segments(rows, offsets, out)

    reduce(*reduce_parts(elements, offsets, reduce), out.reshape(-1, 1))


def pair_loss_backward(
    pair: Pair, of_target: bool, dy: Array, x: Array, t: Array, offsets: Array, out: Array
) -> None:
    queue().kernels(x.dtype).add(SOURCE)
    name = f"{pair.name}_loss_backward_{pair.names[of_target]}"
    over_elements(name, (dy, x, t), offsets, out)


def pick_loss(x: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    over_segments("pick_loss", (x, out), offsets, 1, ids, weights, x.shape[1])


def pick_loss_backward(dy: Array, ids: Array, weights: Array, offsets: Array, out: Array) -> None:
    over_elements("pick_loss_backward", (dy,), offsets, out, ids, weights)
