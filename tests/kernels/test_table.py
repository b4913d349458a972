"""Each case of the table: NumPy against a formula written out."""

import numpy as np

from dynbatch.kernels.c.runtime import library
from tests.kernels.table import CASES
from tests.kernels.table.call import Call, Scratch, every

IN_NUMPY = [case for case in CASES if "-large" not in case.name]  # slow in small blocks


@every(IN_NUMPY)
def test_numpy_leaves_what_the_formula_says(case, block):
    case.each("float64", against_the_formula)


def against_the_formula(call: Call) -> None:
    for is_apart in {False, call.apart}:
        given, left = call.on_host(is_apart), call.by_numpy(is_apart)
        inputs = list(zip(call.arguments, given, left, strict=True))[: -call.outputs]
        for argument, before, after in inputs:
            if isinstance(before, np.ndarray) and not isinstance(argument, Scratch):
                np.testing.assert_array_equal(before, after, "an input was changed")
        for output, plain in zip(left[-call.outputs :], call.expected(), strict=False):
            if plain is not None:
                rtol, atol = (0, 0) if "numpy" in call.exact else (call.near, 1e-15)
                np.testing.assert_allclose(output, plain, rtol=rtol, atol=atol)
    if call.over is not None:
        with library.reference_only():
            apart, shared = call.in_place(call.on_host())
        np.testing.assert_array_equal(apart, shared)
