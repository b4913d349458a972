"""The CUDA version of `kernels/gated.py`, generated from the functions' expressions."""

from __future__ import annotations

from collections.abc import Iterator

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.runtime.source import CudaSource, join
from dynbatch.kernels.cuda.walks import THREADS, TILE
from dynbatch.kernels.expressions import UNARY
from dynbatch.kernels.gated import GATES
from dynbatch.kernels.unary import Argument, Function

WALK = """
// Element i of rows of `width` elements that begin `stride` elements apart.
__device__ __forceinline__ long long place(long long i, int width, int stride) {
    return width == stride ? i : i / width * stride + i % width;
}
"""

KERNELS = """
// Block 256, grid count / 1024; gates and values have rows that begin `stride` elements apart.
extern "C" __global__ void gated_{name}(const REAL* gates, const REAL* values, REAL* out,
        long long count, int width, int stride) {{
    map_elements(out, count, [=](long long i) -> REAL {{
        const long long at = place(i, width, stride);
        const REAL x = gates[at], value = values[at];
        return ({forward}) * value;
    }});
}}

// Likewise; either gradient may be NULL, or lie where dy lies.
extern "C" __global__ void gated_{name}_backward(const REAL* upstream, const REAL* gates,
        const REAL* values, REAL* dgates, REAL* dvalues, long long count, int width, int stride) {{
    const long long first = (long long)blockIdx.x * blockDim.x * EACH + threadIdx.x;
    for (int k = 0; k < EACH; ++k) {{
        const long long i = first + k * blockDim.x;
        if (i >= count) return;
        const long long at = place(i, width, stride);
        const REAL x = gates[at], value = values[at], above = upstream[i];
        const REAL y = {forward}, s = {saved}, dy = above * value;
        if (dgates) dgates[at] = {backward};
        if (dvalues) dvalues[at] = above * y;
    }}
}}
"""


def _generate() -> Iterator[str]:
    yield WALK
    for gate in GATES:
        for f in gate.every_form():
            saved = "y" if f.reads == "output" else "x"
            forward, backward = UNARY[f.name]
            yield KERNELS.format(name=f.name, forward=forward, saved=saved, backward=backward)


SOURCE: CudaSource = join("gated.cu", "".join(_generate()))


def gated(
    function: Function, arguments: tuple[Argument, ...], xs: tuple[Array, ...],
    value_first: bool, out: Array,
) -> None:  # fmt: skip
    chosen, _ = function.chosen(arguments)
    _launch(f"gated_{chosen.name}", (*_sides(xs, value_first), out), len(xs), out)


def gated_backward(
    function: Function, arguments: tuple[Argument, ...], dy: Array,
    xs: tuple[Array, ...], value_first: bool, dxs: tuple[Array | None, ...],
) -> None:  # fmt: skip
    chosen, _ = function.chosen(arguments)
    arrays = (dy, *_sides(xs, value_first), *_sides(dxs, value_first))
    _launch(f"gated_{chosen.name}_backward", arrays, len(xs), dy)


def _launch(name: str, arrays: tuple[Array | None, ...], sides: int, like: Array) -> None:
    """Launch over the elements of `like`; rows of halves are twice as long as its own."""
    queue().kernels(like.dtype).add(SOURCE)
    width, stride = (1, 1) if sides == 2 else (like.shape[1], 2 * like.shape[1])
    args = (*arrays, like.size, width, stride)
    queue().launch(like.dtype, name, (-(-like.size // TILE),), (THREADS,), args)


def _sides(arrays: tuple[Array | None, ...], value_first: bool) -> tuple[Array | None, ...]:
    if len(arrays) == 2:
        return arrays
    (both,) = arrays
    assert both is not None
    halves = both.reshape(-1), both.reshape(-1)[both.shape[1] // 2 :]
    return halves[::-1] if value_first else halves
