"""C functions of `elementwise.h`, `unary.h` and `pairs.h` against NumPy's of the same names."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.compiler.expressions import C as PRINTED_C
from dynbatch.kernels import binary
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import Library
from tests.kernels.unary.cases import EVERY_CHOICE, EVERY_NAME
from tests.marks import needs_compiler

pytestmark = needs_compiler

# Relative errors of values; of gradients, which may be differences, also absolute ones.
PRECISION = {"f": 4e-7, "d": 2e-13}
SMALLEST = {"f": 2e-38, "d": 1e-307}
OF_GRADIENTS = {"f": 2e-7, "d": 1e-15}
# The tail of exp(u) is as inexact as u is large, in NumPy too.
FACTORS = {"gelu_tanh": 20}

KERNEL = """
EXPORT void {name}(ptrdiff_t n, const REAL* a, const REAL* b, const REAL* c, REAL* out) {{
    EACH_VECTOR(i, part, n) put(out + i, {call}, part);
}}
"""
A, B, C = (f"get({name} + i, part)" for name in "abc")


def _source() -> Iterator[str]:
    yield '#include "elementwise.h"\n'
    for k, (kernel, arguments) in enumerate(EVERY_CHOICE):
        function, values = kernel.chosen(arguments)
        numbers = "".join([f", {PRINTED_C.literal(value)}" for value in values])
        call = f"{function.name}_of({A}{numbers})"
        yield KERNEL.format(name=f"unary{k}_forward", call=call)
        call = f"{function.name}_back({A}, {B}{numbers})"
        yield KERNEL.format(name=f"unary{k}_backward", call=call)
    for name, function in binary.FUNCTIONS.items():
        yield KERNEL.format(name=f"{name}_forward", call=f"{name}_of({A}, {B})")
        if function.is_differentiable:
            yield KERNEL.format(name=f"{name}_backward_a", call=f"{name}_back_a({A}, {B}, {C})")
            yield KERNEL.format(name=f"{name}_backward_b", call=f"{name}_back_b({A}, {B}, {C})")
    yield KERNEL.format(name="where_forward", call=f"where_of({A}, {B}, {C})")
    yield KERNEL.format(name="where_backward_a", call=f"where_back_a({A}, {B})")
    yield KERNEL.format(name="where_backward_b", call=f"where_back_b({A}, {B})")


TABLE = Library("table of functions", "".join(_source()))


def in_c(name: str, *values: Array) -> Array:
    """The function's results; the arrays have an element in no whole vector."""
    arrays = [*values, *values[-1:] * (3 - len(values))]
    out = np.full_like(values[0], 77)
    getattr(TABLE.functions(out.dtype), name)(out.size, *map(address, arrays), address(out))
    return out


def numbers(dtype: type, lowest: float = -30, highest: float = 30) -> Array:
    """Numbers of all sizes, and special ones."""
    rng = np.random.default_rng(1)
    wide = rng.uniform(lowest, highest, 1000)
    narrow = rng.standard_normal(1000) * 10.0 ** rng.uniform(-6, 0, 1000)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 2, -1.5, 1e30, -1e30, 80, -80, 105, -105]
    return np.concatenate([wide, narrow, special]).astype(dtype)


def check(mine: Array, exact: Array, factor: float = 1) -> None:
    char = mine.dtype.char
    np.testing.assert_allclose(mine, exact, PRECISION[char] * factor, SMALLEST[char])


def check_gradient(mine: Array, exact: Array, factor: float = 1) -> None:
    char = mine.dtype.char
    relative, absolute = 3 * PRECISION[char] * factor, OF_GRADIENTS[char] * factor
    np.testing.assert_allclose(mine, exact, relative, absolute)


def exact(function: Callable[..., object], dtype: type, *values: Array) -> Array:
    """The NumPy function in float64; in the dtype itself where either is not finite."""
    out, own = np.empty(values[0].shape), np.empty_like(values[0])
    with np.errstate(all="ignore"):
        function(*[value.astype(float) for value in values], out)
        function(*values, own)
        return np.where(np.isfinite(own) & np.isfinite(out), out, own).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", range(len(EVERY_CHOICE)), ids=EVERY_NAME)
def test_a_unary_function_and_its_gradient_are_exact(k: int, dtype: type) -> None:
    (kernel, arguments), name = EVERY_CHOICE[k], f"unary{k}"
    x = numbers(dtype)
    y = exact(lambda x, out: kernel.forward(x, out, *arguments), dtype, x)
    factor = FACTORS.get(EVERY_NAME[k], 1)
    check(in_c(f"{name}_forward", x), y, factor)
    saved = x if kernel.reads == "input" else y
    dy = np.random.default_rng(2).standard_normal(x.shape).astype(dtype)
    expected = exact(lambda dy, s, out: kernel.backward(dy, s, out, *arguments), dtype, dy, saved)
    check_gradient(in_c(f"{name}_backward", dy, saved), expected, factor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", binary.FUNCTIONS)
def test_a_binary_function_and_its_gradients_are_exact(name: str, dtype: type) -> None:
    function = binary.FUNCTIONS[name]
    a = numbers(dtype)
    b = np.roll(a, 3) * dtype(0.1)
    b[::7] = a[::7]
    check(in_c(f"{name}_forward", a, b), exact(function.forward, dtype, a, b))
    if function.is_differentiable:
        dy = np.random.default_rng(2).standard_normal(a.shape).astype(dtype)
        for side, backward in zip("ab", function.backward, strict=True):
            expected = exact(backward, dtype, dy, a, b)
            check_gradient(in_c(f"{name}_backward_{side}", dy, a, b), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_choice_and_its_gradients_are_exact(dtype: type) -> None:
    a = numbers(dtype)
    b, mask = a[::-1].copy(), (np.arange(a.size) % 3 - 1).astype(dtype)
    mask[:2] = np.nan, -0.0
    check(in_c("where_forward", mask, a, b), exact(binary.choose, dtype, mask, a, b))
    for side in 0, 1:
        check(
            in_c(f"where_backward_{'ab'[side]}", a, mask),
            exact(lambda dy, m, out, s=side: binary.choose_backward(dy, m, out, s), dtype, a, mask),
        )
