"""The texts that are printed from definitions, word for word, and what is simplified in them."""

import numpy as np
import pytest

from dynbatch.kernels import binary
from dynbatch.kernels.losses.elementwise import divergence
from dynbatch.kernels.scalar import numpy_printer
from dynbatch.kernels.scalar.c_printer import CPrinter, CudaPrinter, literal
from dynbatch.kernels.scalar.calculus import differentiate
from dynbatch.kernels.scalar.expressions import argument, make, number, variable, where
from dynbatch.kernels.unary import FUNCTIONS, activations, arithmetic, trigonometric

X, DY = variable("x"), variable("dy")

C = """\
INLINE vector silu_of(vector x) {
    return (x * (1 / (1 + exp_of((-x)))));
}
INLINE vector silu_back(vector dy, vector s) {
    vector t0 = (1 / (1 + exp_of((-s))));
    return (dy * (t0 + ((s * t0) * (1 - t0))));
}
INLINE vector elu_of(vector x, REAL alpha) {
    return choose((x > 0), x, (alpha * expm1_of(smaller(splat(0), x))));
}
INLINE vector elu_back(vector dy, vector s, REAL alpha) {
    return (dy * choose((s > 0), splat(1), (alpha * exp_of(smaller(splat(0), s)))));
}
INLINE vector gelu_of(vector x) {
    vector t0b, t0 = normal_of(x, &t0b);
    return (x * t0);
}
INLINE vector gelu_back(vector dy, vector s) {
    vector t0b, t0 = normal_of(s, &t0b);
    return (dy * (t0 + (s * (t0b * ((REAL)0.3989422804014327)))));
}
INLINE vector power_back(vector dy, vector s, REAL exponent) {
    return ((exponent == 0) ? splat(0) : ((power_of(s, (exponent - 1)) * exponent) * dy));
}
INLINE vector acos_back(vector dy, vector s) {
    return ((-dy) / sqrt_of(((1 - s) * (1 + s))));
}
INLINE vector divide_of(vector a, vector b) {
    return (a / b);
}
INLINE vector divide_back_a(vector dy, vector a, vector b) {
    return (dy / b);
}
INLINE vector divide_back_b(vector dy, vector a, vector b) {
    return (-(((a / b) / b) * dy));
}
INLINE vector maximum_back_a(vector dy, vector a, vector b) {
    return choose((a < b), splat(0), choose((a == b), (dy * ((REAL)0.5)), dy));
}
INLINE vector maximum_back_b(vector dy, vector a, vector b) {
    return choose((b < a), splat(0), choose((a == b), (dy * ((REAL)0.5)), dy));
}
INLINE vector greater_of(vector a, vector b) {
    return choose((a > b), splat(1), splat(0));
}
"""

CUDA = """\
__device__ __forceinline__ REAL silu_of(REAL x) {
    return (x * sigmoid(x));
}
__device__ __forceinline__ REAL silu_back(REAL dy, REAL s) {
    REAL t0 = sigmoid(s);
    return (dy * (t0 + ((s * t0) * (1 - t0))));
}
__device__ __forceinline__ REAL elu_of(REAL x, REAL alpha) {
    return ((x > 0) ? x : (alpha * expm1(at_most(x, 0))));
}
__device__ __forceinline__ REAL elu_back(REAL dy, REAL s, REAL alpha) {
    return (dy * ((s > 0) ? (REAL)1 : (alpha * exp(at_most(s, 0)))));
}
__device__ __forceinline__ REAL gelu_of(REAL x) {
    const REAL t0b = exp_of_half_square(x), t0 = normal_distribution(x, t0b);
    return (x * t0);
}
__device__ __forceinline__ REAL gelu_back(REAL dy, REAL s) {
    const REAL t0b = exp_of_half_square(s), t0 = normal_distribution(s, t0b);
    return (dy * (t0 + (s * (t0b * ((REAL)0.3989422804014327)))));
}
__device__ __forceinline__ REAL power_of(REAL x, REAL exponent) {
    return power(x, exponent);
}
__device__ __forceinline__ REAL power_back(REAL dy, REAL s, REAL exponent) {
    return ((exponent == 0) ? (REAL)0 : ((power(s, (exponent - 1)) * exponent) * dy));
}
__device__ __forceinline__ REAL acos_of(REAL x) {
    return acos(x);
}
__device__ __forceinline__ REAL acos_back(REAL dy, REAL s) {
    return ((-dy) / sqrt(((1 - s) * (1 + s))));
}
__device__ __forceinline__ REAL divide_of(REAL a, REAL b) {
    return (a / b);
}
__device__ __forceinline__ REAL divide_back_a(REAL dy, REAL a, REAL b) {
    return (dy / b);
}
__device__ __forceinline__ REAL divide_back_b(REAL dy, REAL a, REAL b) {
    return (-(((a / b) / b) * dy));
}
__device__ __forceinline__ REAL maximum_of(REAL a, REAL b) {
    return Max::combine(a, b);
}
__device__ __forceinline__ REAL maximum_back_a(REAL dy, REAL a, REAL b) {
    return ((a < b) ? (REAL)0 : ((a == b) ? (dy * ((REAL)0.5)) : dy));
}
__device__ __forceinline__ REAL maximum_back_b(REAL dy, REAL a, REAL b) {
    return ((b < a) ? (REAL)0 : ((a == b) ? (dy * ((REAL)0.5)) : dy));
}
__device__ __forceinline__ REAL greater_of(REAL a, REAL b) {
    return ((a > b) ? (REAL)1 : (REAL)0);
}
"""

NUMPY = """\
def silu(dy, x, out):
    [c0, c1] = numbers[out.dtype]  # -1, 1
    t0 = np.multiply(x, c0)
    np.exp(t0, t0)
    np.add(c1, t0, t0)
    np.divide(c1, t0, t0)
    t1 = np.multiply(x, t0)
    t2 = np.subtract(c1, t0)
    np.multiply(t1, t2, t1)
    np.add(t0, t1, t0)
    np.multiply(dy, t0, out)
def softplus(dy, x, out):
    [c0, c1] = numbers[out.dtype]  # -1, 1
    np.multiply(x, c0, out)
    np.exp(out, out)
    np.add(c1, out, out)
    np.divide(c1, out, out)
    np.multiply(dy, out, out)
def gelu(dy, x, out):
    [c0] = numbers[out.dtype]  # 2.5066282746310002
    t0, t1 = normal.distribution(x)
    np.divide(t1, c0, t1)
    np.multiply(x, t1, t1)
    np.add(t0, t1, t0)
    np.multiply(dy, t0, out)
def leaky_relu(dy, x, out, slope):
    [c0, c1] = numbers[out.dtype]  # 0, 1
    m1 = np.greater(x, c0)
    t0 = np.where(m1, c1, slope)
    np.multiply(dy, t0, out)
def clip(dy, x, out, low, high):
    m1 = np.greater_equal(x, low)
    m2 = np.less_equal(x, high)
    np.logical_and(m1, m2, m1)
    np.multiply(dy, m1, out)
def divergence(x, t, out):
    [c0, c1] = numbers[out.dtype]  # 0, 1
    m1 = np.equal(t, c0)
    t0 = np.where(m1, c1, t)
    np.log(t0, t0)
    np.subtract(t0, x, t0)
    np.multiply(t0, t, out)
    np.copyto(out, c0, where=m1)
"""

COMPILED = (
    activations.silu, activations.elu, activations.gelu, arithmetic.power, trigonometric.acos
)  # fmt: skip
PAIRS = binary.divide, binary.maximum, binary.greater
IN_NUMPY = (
    activations.silu, activations.softplus, activations.gelu, activations.leaky_relu,
    arithmetic.clip,
)  # fmt: skip


def test_c_and_cuda_are_these():
    assert CPrinter().text(COMPILED) + CPrinter().pairs(PAIRS) == C
    assert CudaPrinter().text(COMPILED) + CudaPrinter().pairs(PAIRS) == CUDA


def test_numpys_gradients_write_over_dy_only_after_its_last_use():
    texts = []
    for f in IN_NUMPY:
        parameters, kept = ("dy", "x", "out", *f.names_of_arguments), {"dy"} if f.inplace else set()
        printer = numpy_printer.Printer({"out": f.gradient("numpy")}, kept)
        texts.append(printer.text(f.name, parameters))
    loss = numpy_printer.Printer({"out": divergence.value("numpy")}, {"x", "t"})
    texts.append(loss.text("divergence", ("x", "t", "out")))
    assert "".join([text.rstrip(" ") for text in texts]) == NUMPY
    assert [f.name for f in IN_NUMPY if not f.inplace] == ["softplus"]


def test_a_comparison_is_one_pass_of_numpys():
    roots = {"out": binary.greater.value("numpy")}
    text = numpy_printer.Printer(roots, {"a", "b"}).text("greater", ("a", "b", "out"))
    assert text.strip() == "def greater(a, b, out):\n    np.greater(a, b, out)"


def test_what_a_derivative_reads_is_found():
    found = {name: f.reads for name, f in FUNCTIONS.items()}
    assert {name for name in found if found[name] == "none"} == {
        "negative", "detached", "sign", "round", "floor", "ceil",
    }  # fmt: skip
    assert {name for name in found if found[name] == "output"} == {
        "tanh", "sigmoid", "relu", "exp", "sqrt", "tan",
    }  # fmt: skip


def test_equal_expressions_are_one_object_and_what_loses_a_bit_stays():
    assert X * X + 1 is X * X + 1
    assert 1 * X is X and X / 1 is X and make("negative", -X) is X and X * -1 is -X
    assert where(X > 0, DY, DY) is DY
    for kept in (X + 0, 0 * X, X - X, X / X):  # -0 + 0 is 0; 0 · inf is NaN
        assert kept.operands
    assert number(0.0) is not number(-0.0)


def test_a_variable_that_does_not_reach_the_value_has_no_gradient():
    assert differentiate(make("sign", X), X, DY) is None
    assert differentiate(argument("alpha") * 2, X, DY) is None


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_definition_has_finite_numbers(value):
    with pytest.raises(ValueError, match="an expression has the number"):
        literal(value)
