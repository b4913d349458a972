import numpy as np
import pytest

from dynbatch.kernels import narrow
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import launches
from tests.kernels.test_narrow import every_upper_half, nearest


@pytest.mark.parametrize("size", [0, 1, 33, 1025, None])
def test_values_are_rounded_narrowed_and_widened_to_the_bit(cupy, size):
    x = every_upper_half()
    x = np.random.default_rng(0).permutation(x)[:3001] if size is None else x[::97][:size]
    expected = nearest(x)
    rounded, narrowed = cupy.asarray(x), cupy.asarray(x)
    halves = cupy.asarray(np.zeros(x.size + 1, np.float32)).view(np.uint16)[1 : x.size + 1]
    wide = cupy.asarray(np.zeros(x.size, np.float32))
    with launches(3 if x.size else 0):
        narrow.round_values(rounded)
        narrow.narrow(narrowed, halves)
        narrow.widen(halves, wide)
        queue().flush()
    for each in (rounded, narrowed, wide):
        assert each.get().tobytes() == expected.tobytes()
