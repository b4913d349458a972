"""Each case of the table: C against NumPy."""

import numpy as np
import pytest

from dynbatch.kernels.runtime.dispatch import c_version
from tests.kernels.c.compare import TOLERANCE
from tests.kernels.table import CASES
from tests.kernels.table.call import Call, Scratch, every

IN_C = [case for case in CASES if case.has("c")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every(IN_C)
def test_c_leaves_what_numpy_leaves(case, dtype):
    case.each(dtype, against_numpy)


def against_numpy(call: Call) -> None:
    assert call.has("c")
    for is_apart in {False, call.apart}:
        mine, expected = call.on_host(is_apart), call.by_numpy(is_apart)
        result = c_version(call.kernel)(*mine, **call.named)
        assert result is not NotImplemented, "the C version does not take these arguments"
        for argument, array, reference in zip(call.arguments, mine, expected, strict=True):
            if isinstance(reference, np.ndarray) and not isinstance(argument, Scratch):
                tolerance = (
                    0 if "c" in call.exact.split() else TOLERANCE.get(reference.dtype.char, 0)
                )
                np.testing.assert_allclose(array, reference, tolerance, tolerance)
                if "c" in call.exact.split():
                    assert (np.signbit(array) == np.signbit(reference)).all()
    if call.over is not None:
        apart, shared = call.in_place(call.on_host())
        assert apart.tobytes() == shared.tobytes()
    if call.alone:
        for together, own in call.segments_alone(call.on_host()):
            assert together.tobytes() == own.tobytes()
