import re

import pytest

from dynbatch.kernels import binary, expressions
from dynbatch.kernels.unary import FUNCTIONS

UNARY = [*FUNCTIONS.values()]
BINARY = [*binary.FUNCTIONS.values()]


def variables(expression):
    """The single-letter variables, and dy and arguments, that an expression reads."""
    return set(re.findall(r"\b(?:[a-z]|dy|a\d)\b(?!\()", expression))


def test_every_function_has_expressions():
    assert {kernel.name for kernel in UNARY} | {"gelu_tanh"} == set(expressions.UNARY)
    assert {kernel.name for kernel in BINARY} == set(expressions.BINARY)


@pytest.mark.parametrize("kernel", UNARY, ids=lambda kernel: kernel.name)
def test_a_derivative_reads_what_the_kernel_retains(kernel):
    expression = expressions.UNARY[kernel.name]
    assert "x" in variables(expression.forward)
    assert {"x", "s"} & variables(expression.backward) == (
        set() if kernel.reads == "none" else {"s"}
    )


@pytest.mark.parametrize("kernel", BINARY, ids=lambda kernel: kernel.name)
def test_derivatives_of_two_values_read_what_the_kernel_retains(kernel):
    expression = expressions.BINARY[kernel.name]
    read = variables(expression.backward_a) | variables(expression.backward_b)
    assert read - {"dy"} == {
        name for name, is_read in zip("ab", kernel.reads, strict=True) if is_read
    }


def test_no_number_makes_a_float_a_double():
    for expression in [*expressions.UNARY.values(), *expressions.BINARY.values()]:
        for text in expression:
            assert "." not in re.sub(r"\(REAL\)[\d.]+", "", text)
