import numpy as np
import pytest

from dynbatch.kernels import dropout
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches

rng = np.random.default_rng(0)


def segments(lengths):
    streams = rng.integers(0, 1 << 32, len(lengths), np.uint32)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return streams, offsets


@pytest.mark.parametrize("lengths", [(0, 1, 31, 32, 33, 1025, 2, 0), (40, 40, 40), (0, 0)])
def test_the_mask_is_the_same_bit_for_bit(cupy, dtype, lengths):
    streams, offsets = segments(lengths)
    x = rng.standard_normal(offsets[-1]).astype(dtype)
    probabilities = rng.random(len(lengths))
    with launches(bool(x.size)):
        assert_versions_agree(
            dropout.dropout, Values(x), streams, probabilities, offsets, Values(x), rtol=0, atol=0
        )


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_the_borders_of_the_probability(cupy, dtype, p):
    streams, offsets = segments((33, 7))
    x = rng.standard_normal(40).astype(dtype)
    x[[3, 35]] = np.nan, np.inf
    _, y = assert_versions_agree(
        dropout.dropout, Values(x), streams, np.full(2, p), offsets, Values(x), rtol=0, atol=0
    )
    finite = np.isfinite(x)
    if p == 1:
        assert not y[finite].any()
    else:
        assert set(np.unique(y[finite] / x[finite]).tolist()) == ({1} if p == 0 else {0, 2})


def test_a_sentence_gets_its_mask_in_any_mini_batch(cupy, dtype):
    ones = np.ones(300, dtype)
    streams, offsets = segments((50, 200, 50))
    (_, y) = assert_versions_agree(
        dropout.dropout, Values(ones), streams, np.full(3, 0.3), offsets, Values(ones), rtol=0
    )
    (_, alone) = assert_versions_agree(
        *(dropout.dropout, Values(ones[:200]), streams[1:2], np.full(1, 0.3)),
        *(np.array([0, 200]), Values(ones[:200])),
        rtol=0,
    )
    assert y[50:250].tobytes() == alone.tobytes()
