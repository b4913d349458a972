import numpy as np
import pytest

from dynbatch.kernels import rows as kernels
from dynbatch.kernels.cuda.rows import row_table
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches


def normal(dtype, *shape, seed=0):
    return Values(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def permutation(items):
    return np.random.default_rng(0).permutation(items)


@pytest.mark.parametrize("width", [0, 1, 31, 32, 33, 1025])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_gathered_rows(cupy, dtype, count, width):
    rows, index = normal(dtype, 20, width), permutation(40)[:count] % 20
    with launches(bool(count * width)):
        assert_versions_agree(kernels.gather_rows, rows, index, normal(dtype, count, width), rtol=0)


# Ids that repeat 0, 1, 31, 32, 33 or many times: short segments, long ones, and none.
IDS = {
    "none": np.zeros(0, np.int64),
    "one": np.array([3]),
    "all different": permutation(40),
    "one id": np.full(100, 7),
    "uneven": permutation(np.repeat([0, 2, 3, 5, 6, 8], [1, 31, 32, 33, 300, 2])),
}


@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_rows_summed_by_id(cupy, dtype, ids, width):
    rows = normal(dtype, ids.size, width)
    with launches(1 + bool(ids.size)):
        assert_versions_agree(kernels.scatter_rows, rows, ids, normal(dtype, 50, width), atol=2e-5)
        assert_versions_agree(kernels.sum_rows_by_id, ids, rows, atol=2e-5)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_rows_are_added(cupy, dtype, count):
    index = np.sort(permutation(50)[:count])
    assert_versions_agree(kernels.add_rows, normal(dtype, count, 33), index, normal(dtype, 50, 33))


def test_the_bits_of_a_sum_do_not_depend_on_the_other_rows(cupy, dtype):
    rows = normal(dtype, 2000, 5).array
    alone = np.full(200, 3)
    crowd = np.concatenate((alone, 10 + permutation(1800) % 900))
    results = []
    for ids in (alone, crowd):
        _, sums = kernels.sum_rows_by_id(ids, cupy.asarray(rows[: ids.size]))
        queue().flush()
        results.append(sums.get()[0])
    assert results[0].tobytes() == results[1].tobytes()


def test_row_table_lists_the_rows_of_each_id_in_order():
    sources, offsets, targets = row_table(np.array([5, 2, 5, 9, 2]))
    assert (sources.tolist(), offsets.tolist(), targets.tolist()) == (
        [1, 4, 0, 2, 3],
        [0, 2, 4, 5],
        [2, 5, 9],
    )
    assert {part.dtype.name for part in (sources, offsets, targets)} == {"int32"}
