from itertools import pairwise

import numpy as np
import pytest

from dynbatch.errors import ShapeError
from dynbatch.kernels import segment
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.cuda.walks import segment_table
from tests.kernels.cuda.compare import Values
from tests.kernels.table.reductions import LONG
from tests.kernels.table.segments import SHAPES


def normal(dtype, *shape, seed=0):
    return Values(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def test_the_bits_of_a_reduction_do_not_depend_on_the_other_segments(cupy, dtype):
    for offsets, width in ((LONG, 1), SHAPES["uneven of 1"], SHAPES["uneven of 33"]):
        rows = cupy.asarray(normal(dtype, offsets[-1], width).array)
        together = cupy.empty((len(offsets) - 1, width), dtype)
        alone = cupy.empty(together.shape, dtype)
        segment.reduce_segments(np.add, rows, offsets, together, 0)
        for k, (start, end) in enumerate(pairwise(offsets)):
            ends = np.array([0, end - start])
            segment.reduce_segments(np.add, rows[start:end], ends, alone[k : k + 1], 0)
        queue().flush()
        assert alone.get().tobytes() == together.get().tobytes()


def test_more_elements_than_a_table_can_number_are_refused():
    with pytest.raises(ShapeError, match="segments of 4294967296 rows"):
        segment_table(np.array([0, 5, 1 << 32]))
    assert segment_table(np.array([0, 1 << 31, 1 << 32])) == (None, 1 << 31)
