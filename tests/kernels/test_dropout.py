import numpy as np
import pytest

from dynbatch.kernels import dropout as kernels
from dynbatch.kernels import segment

pytestmark = pytest.mark.usefixtures("block")


def bits(stream, count):
    """The random bits of one stream's first elements."""
    return kernels.random_bits(np.array([stream], np.uint32), np.array([0, count]), 0, count)


def test_the_hash_is_the_published_one():
    # Computed with Python's integers from the definition in the source that hash32 names.
    def published(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    numbers = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    found = kernels.hash32(np.array(numbers, np.uint32))
    assert found.tolist() == [published(x) for x in numbers]


def test_the_bits_of_a_segment_are_those_of_its_stream_alone():
    streams = np.array([7, 2**32 - 1, 7, 0], np.uint32)
    offsets = np.array([0, 5, 5, 12, 20])
    found = kernels.random_bits(streams, offsets, 0, 20)
    for k, stream in enumerate(streams):
        part = found[offsets[k] : offsets[k + 1]]
        assert part.tolist() == bits(stream, part.size).tolist()
    assert found[:5].tolist() == found[5:10].tolist()  # equal streams, whatever their lengths
    for start in range(21):
        for end in range(start, 21):
            part = kernels.random_bits(streams, offsets, start, end)
            assert part.tolist() == found[start:end].tolist()


def test_the_bits_look_random():
    """Each statistic within five standard deviations of what independent fair bits give."""
    count = 1 << 16
    drawn = [bits(stream, count) for stream in (0, 1, 2, 3, 2**31, 0xDEADBEEF)]
    for values in drawn:
        as_bits = np.unpackbits(values.view(np.uint8)).reshape(count, 32).astype(float)
        deviation = 0.5 / np.sqrt(count)
        assert np.abs(as_bits.mean(axis=0) - 0.5).max() < 5 * deviation
        centred = 2 * as_bits - 1
        for lag in (1, 2, 64, 256):
            correlation = (centred[lag:] * centred[:-lag]).mean(axis=0)
            assert np.abs(correlation).max() < 5 / np.sqrt(count - lag)
        between = centred.T @ centred / count - np.eye(32)
        assert np.abs(between).max() < 5 / np.sqrt(count)
        # 256 equal classes of the upper bits: chi-squared has mean 255 and variance 510.
        counts = np.bincount(values >> 24, minlength=256)
        chi_squared = ((counts - count / 256) ** 2).sum() / (count / 256)
        assert abs(chi_squared - 255) < 5 * np.sqrt(510)


def test_neighbouring_streams_are_not_alike():
    count = 1 << 14
    drawn = np.array([bits(stream, count) >> 31 for stream in range(32)]) * 2.0 - 1
    between = drawn @ drawn.T / count - np.eye(32)
    assert np.abs(between).max() < 5 / np.sqrt(count)
    shifted = drawn[:, 1:] @ drawn[:, :-1].T / count
    assert np.abs(shifted).max() < 5 / np.sqrt(count)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elements_are_dropped_with_their_segments_probability(dtype):
    offsets = np.array([0, 40000, 80000, 80000, 120000, 160000])
    probabilities = np.array([0.1, 0.5, 0.3, 0.9, 1.0])
    streams = np.arange(5, dtype=np.uint32)
    x = np.ones(160000, dtype)
    out = np.empty_like(x)
    kernels.dropout(x, streams, probabilities, offsets, out)
    for k, p in enumerate(probabilities):
        part = out[offsets[k] : offsets[k + 1]]
        if part.size:
            assert (part == 0).mean() == pytest.approx(p, abs=0.015)
            assert part[part != 0] == pytest.approx(1 / (1 - p) if p < 1 else 0)
    again = np.empty(160000, np.float64)
    kernels.dropout(np.ones(160000), streams, probabilities, offsets, again)
    assert ((again != 0) == (out != 0)).all()  # one mask for both dtypes


def test_equal_probabilities_take_the_short_way_to_the_same_numbers():
    x = np.random.default_rng(0).standard_normal(100)
    streams, offsets = np.array([1, 2], np.uint32), np.array([0, 30, 100])
    alone, together = np.empty(30), np.empty(100)
    kernels.dropout(x[:30], streams[:1], np.array([0.3]), offsets[:2], alone)
    kernels.dropout(x, streams, np.array([0.3, 0.4]), offsets, together)
    assert alone.tolist() == together[:30].tolist()


def test_blocks_do_not_show(monkeypatch):
    x = np.random.default_rng(0).standard_normal(100)
    streams, offsets = np.array([1, 2, 3], np.uint32), np.array([0, 30, 30, 100])
    whole, blocks = np.empty(100), np.empty(100)
    kernels.dropout(x, streams, np.array([0.3, 0.4, 0.5]), offsets, whole)
    monkeypatch.setattr(segment, "BLOCK", 14)
    kernels.dropout(x, streams, np.array([0.3, 0.4, 0.5]), offsets, blocks)
    assert whole.tolist() == blocks.tolist()


def test_nothing_is_dropped_from_nothing():
    nothing = np.empty(0)
    kernels.dropout(nothing, np.empty(0, np.uint32), np.empty(0), np.array([0]), nothing)
