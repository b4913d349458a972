import numpy as np

from dynbatch.testing import NanPool


def test_every_array_it_gives_is_nan():
    pool = NanPool()
    for dtype in (np.float32, np.float64):
        first = pool.take(100, dtype)
        assert np.isnan(first).all()
        first.fill(0)
        pool.give(first)
        assert np.isnan(pool.take(100, dtype)).all()
