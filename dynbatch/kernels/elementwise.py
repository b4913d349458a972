"""Functions of one value with their derivatives, element by element, in place where possible.

A `UnaryFunction` says whether its derivative is written in terms of its input or its output; the
derivative kernel gets that array. Large arrays are done in blocks: several passes over one stay in
the cache, and what a function needs beside `out` is bounded. Results are inf and NaN where
PyTorch's are; the executor has silenced NumPy's warnings of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels import normal, segment
from dynbatch.kernels.runtime.dispatch import has_cuda

ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
GELU_RANGE = 40.0


@dataclass(frozen=True)
class UnaryFunction:
    """y = f(x; arguments).

    Args:
        name:     of the function, and of its CUDA kernel.
        forward:  (x, out, *arguments); `out` may be `x`.
        backward: (dy, saved, out, *arguments), with saved = x or y as `reads` says.
        reads:    "input", "output", or "none".
        inplace:  whether `out` of backward may be dy.
        slope:    (saved, out), out = f'(x), where backward is a product with it.
    """

    name: str
    forward: Callable[..., None]
    backward: Callable[..., None]
    reads: str
    slope: Callable[[Array, Array], None] | None = None
    inplace: bool = False


def negate(x: Array, out: Array) -> None:
    """out = -x."""
    # Not np.negative: NumPy 2.4's is wrong for columns of rows that are 16 or 64 bytes apart.
    np.multiply(x, -1, out=out)


def _negative_backward(dy: Array, saved: Array, out: Array) -> None:
    negate(dy, out)


def _detached(x: Array, out: Array) -> None:
    if out is not x:
        np.copyto(out, x)


def _detached_backward(dy: Array, saved: Array, out: Array) -> None:
    out[...] = 0


def _sigmoid(x: Array, out: Array) -> None:
    # Where exp(-x) overflows, 1 / (1 + inf) is the 0 that is due. (1 + tanh(x/2)) / 2 takes as many
    # passes, but is 0 from -17 on in float32.
    negate(x, out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(1, out, out=out)  # NumPy's reciprocal is slower


def _sigmoid_slope(y: Array, out: Array) -> None:
    np.subtract(1, y, out=out)  # exact near 1, as y - y² is not
    np.multiply(out, y, out=out)


def _sigmoid_backward(dy: Array, y: Array, out: Array) -> None:
    _sigmoid_slope(y, out)
    np.multiply(out, dy, out=out)


def _tanh(x: Array, out: Array) -> None:
    np.tanh(x, out=out)


def _tanh_slope(y: Array, out: Array) -> None:
    np.multiply(y, y, out=out)
    np.subtract(1, out, out=out)


def _tanh_backward(dy: Array, y: Array, out: Array) -> None:
    _tanh_slope(y, out)
    np.multiply(out, dy, out=out)


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def _relu_slope(y: Array, out: Array) -> None:
    np.sign(y, out=out)


def _relu_backward(dy: Array, y: Array, out: Array) -> None:
    _relu_slope(y, out)
    np.multiply(out, dy, out=out)


def _exp(x: Array, out: Array) -> None:
    np.exp(x, out=out)


def _exp_backward(dy: Array, y: Array, out: Array) -> None:
    np.multiply(dy, y, out=out)


def _log(x: Array, out: Array) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        np.log(x, out=out)


def _log_backward(dy: Array, x: Array, out: Array) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        np.divide(dy, x, out=out)


def _sqrt(x: Array, out: Array) -> None:
    with np.errstate(invalid="ignore"):
        np.sqrt(x, out=out)


def _sqrt_backward(dy: Array, y: Array, out: Array) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        np.divide(dy, y, out=out)
    np.multiply(out, 0.5, out=out)


def _abs(x: Array, out: Array) -> None:
    np.abs(x, out=out)


def _abs_backward(dy: Array, x: Array, out: Array) -> None:
    np.sign(x, out=out)
    np.multiply(out, dy, out=out)


def _power(x: Array, out: Array, exponent: float) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        np.power(x, exponent, out=out)


def _power_backward(dy: Array, x: Array, out: Array, exponent: float) -> None:
    if exponent == 0:  # also at x = 0, where 0 · x^-1 is not a number
        out[...] = 0
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        np.power(x, exponent - 1, out=out)
    np.multiply(out, exponent, out=out)
    np.multiply(out, dy, out=out)


def _clip(x: Array, out: Array, low: float, high: float) -> None:
    np.clip(x, low, high, out=out)


def _clip_backward(dy: Array, x: Array, out: Array, low: float, high: float) -> None:
    np.multiply(dy, (x >= low) & (x <= high), out=out)


def _leaky_relu(x: Array, out: Array, slope: float) -> None:
    scaled = np.multiply(x, slope)
    np.copyto(out, np.where(x > 0, x, scaled))


def _leaky_relu_backward(dy: Array, x: Array, out: Array, slope: float) -> None:
    np.multiply(dy, np.where(x > 0, 1, slope).astype(dy.dtype), out=out)


def _elu(x: Array, out: Array, alpha: float) -> None:
    np.copyto(out, np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


def _elu_backward(dy: Array, x: Array, out: Array, alpha: float) -> None:
    slope = np.where(x > 0, np.ones_like(x), alpha * np.exp(np.minimum(x, 0)))
    np.multiply(dy, slope, out=out)


def _gelu(x: Array, out: Array, approximate: str) -> None:
    if approximate == "tanh":
        # ½ (1 + tanh(u)) is σ(2u), which keeps its small values.
        below = _logistic(2 * _inner(x))
    else:
        below, _ = normal.distribution(x)
    np.multiply(x, below, out=out)


def _gelu_backward(dy: Array, x: Array, out: Array, approximate: str) -> None:
    if approximate == "tanh":
        near = np.clip(x, -GELU_RANGE, GELU_RANGE)  # beyond, the slope is 0 or 1
        u = 2 * _inner(near)
        inner = 2 * ROOT_2_OVER_PI * (1 + 3 * GELU_CUBIC * near * near)
        below = _logistic(u)
        slope = below * (1 + near * _logistic(-u) * inner)
    else:
        below, density = normal.distribution(x)
        slope = below + x * (density / normal.ROOT_2_PI)
    np.multiply(dy, slope, out=out)


def _inner(x: Array) -> Array:
    result: Array = ROOT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)
    return result


def _logistic(x: Array) -> Array:
    result = np.empty_like(x)
    _sigmoid(x, result)
    return result


def _silu(x: Array, out: Array) -> None:
    np.multiply(x, _logistic(x), out=out)


def _silu_backward(dy: Array, x: Array, out: Array) -> None:
    gate = _logistic(x)
    np.multiply(dy, gate * (1 + x * (1 - gate)), out=out)


def _softplus(x: Array, out: Array) -> None:
    np.logaddexp(x, 0, out=out)


def _softplus_backward(dy: Array, x: Array, out: Array) -> None:
    _sigmoid(x, out)
    np.multiply(out, dy, out=out)


def _log_sigmoid(x: Array, out: Array) -> None:
    negate(x, out)
    np.logaddexp(out, 0, out=out)
    negate(out, out)


def _log_sigmoid_backward(dy: Array, x: Array, out: Array) -> None:
    negate(x, out)
    _sigmoid(out, out)
    np.multiply(out, dy, out=out)


def _sign(x: Array, out: Array) -> None:
    np.sign(x, out=out)


def _sign_backward(dy: Array, saved: Array, out: Array) -> None:
    out[...] = 0


sigmoid = UnaryFunction("sigmoid", _sigmoid, _sigmoid_backward, "output", _sigmoid_slope)
tanh = UnaryFunction("tanh", _tanh, _tanh_backward, "output", _tanh_slope)
relu = UnaryFunction("relu", _relu, _relu_backward, "output", _relu_slope)
detached = UnaryFunction("detached", _detached, _detached_backward, "none", inplace=True)
negative = UnaryFunction("negative", negate, _negative_backward, "none", inplace=True)
exp = UnaryFunction("exp", _exp, _exp_backward, "output", inplace=True)
log = UnaryFunction("log", _log, _log_backward, "input", inplace=True)
sqrt = UnaryFunction("sqrt", _sqrt, _sqrt_backward, "output", inplace=True)
absolute = UnaryFunction("absolute", _abs, _abs_backward, "input")
power = UnaryFunction("power", _power, _power_backward, "input")
clip = UnaryFunction("clip", _clip, _clip_backward, "input", inplace=True)
leaky_relu = UnaryFunction("leaky_relu", _leaky_relu, _leaky_relu_backward, "input", inplace=True)
elu = UnaryFunction("elu", _elu, _elu_backward, "input", inplace=True)
gelu = UnaryFunction("gelu", _gelu, _gelu_backward, "input", inplace=True)
silu = UnaryFunction("silu", _silu, _silu_backward, "input", inplace=True)
softplus = UnaryFunction("softplus", _softplus, _softplus_backward, "input")
log_sigmoid = UnaryFunction("log_sigmoid", _log_sigmoid, _log_sigmoid_backward, "input")
sign = UnaryFunction("sign", _sign, _sign_backward, "none", inplace=True)


@has_cuda(1)
def apply(kernel: UnaryFunction, x: Array, out: Array, *arguments: Any) -> None:
    """out = f(x; arguments), of any one shape; `out` may be `x`."""
    if out.size <= segment.BLOCK:
        kernel.forward(x, out, *arguments)
        return
    for part in blocks_of(out):
        kernel.forward(x[part], out[part], *arguments)


@has_cuda(1)
def apply_backward(
    kernel: UnaryFunction, dy: Array, saved: Array, out: Array, *arguments: Any
) -> None:
    """out = dy ⊙ f'(saved; arguments), with saved as `kernel.reads` says.

    `out` is not `saved`; a flat one may be `dy`.
    """

    def backward(part: slice, room: Array) -> None:
        kernel.backward(dy[part], saved[part], room, *arguments)

    if not kernel.inplace and is_flat_within(dy, out):
        write_over(out, backward)
    elif out.size <= segment.BLOCK:
        kernel.backward(dy, saved, out, *arguments)
    else:
        for part in blocks_of(out):
            backward(part, out[part])


def is_flat_within(dy: Array, out: Array) -> bool:
    """Whether a flat `out` is `dy`."""
    return out.ndim == 1 and np.may_share_memory(dy, out)


def blocks_of(out: Array) -> Iterator[slice]:
    """Parts of an array of one element or more."""
    return segment.blocks(len(out), out.size // len(out))


def write_over(out: Array, function: Callable[[slice, Array], None]) -> None:
    """Write over what the function reads: each block is made apart and then copied."""
    room = np.empty(min(out.size, segment.BLOCK), out.dtype)
    for part in blocks_of(out) if out.size else ():
        made = room[: len(out[part])]
        function(part, made)
        np.copyto(out[part], made)
