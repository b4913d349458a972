import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.cuda.losses import crf as launched
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.losses import crf as kernels
from dynbatch.kernels.losses.crf import Chain
from tests.cuda import fake_cupy
from tests.kernels.cuda.attention.test_dot_product import room
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

# Tags for one warp, for several, and for more than a block has threads.
CASES = [
    ((2, 0, 4, 1, 0), 1),
    ((3, 0, 5, 1), 5),
    ((3, 2), 32),
    ((4, 1), 33),
    ((0, 0), 3),
    ((), 3),
    ((2,), 520),
]
EACH = pytest.mark.parametrize(("lengths", "tags"), CASES)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def exercise(kernels):
    """Several warps, several tags of a thread, three tokens."""
    tags, tokens = 70, 3
    x, log_sums, dx = [fake_cupy.zeros((tokens, tags), np.float32) for _ in range(3)]
    transitions, start = (
        fake_cupy.zeros((tags, tags), np.float32),
        fake_cupy.zeros(tags, np.float32),
    )
    shifts, out = fake_cupy.zeros(tokens, np.float32), fake_cupy.zeros(1, np.float32)
    offsets, ids = fake_cupy.asarray(np.array([0, tokens])), fake_cupy.zeros(tokens, np.int32)
    shared = 2 * tags * 4
    args = (x, transitions, start, start, ids, offsets, log_sums, shifts, out, tags)
    kernels.launch("crf", (1,), (64,), args, shared)
    args = (x, transitions, start, ids, offsets, log_sums, shifts, out, dx, tags)
    kernels.launch("crf_backward", (1,), (64,), args, shared)
    origin = fake_cupy.zeros((tokens, tags), np.int32)
    args = (x, transitions, start, start, offsets, origin, shifts, tags)
    kernels.launch("viterbi", (1,), (64,), args, shared)


def problem(dtype, lengths, tags):
    """Emissions, chain, tags and offsets; some transitions forbidden."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    shapes = ((tags, tags), (tags,), (tags,))
    chain = Chain(*[normal(dtype, *shape, seed=k) for k, shape in enumerate(shapes)])
    chain.transitions.array[tags // 2, : tags - 1] = -np.inf
    ids = np.random.default_rng(3).integers(0, tags, offsets[-1])
    ids[ids == tags // 2] = tags - 1
    return normal(dtype, offsets[-1], tags, seed=4), chain, ids, offsets


def left_by_forward(x, chain, ids, offsets):
    """The arrays that the NumPy kernel leaves."""
    x, chain = x.array, Chain(*[part.array for part in chain])
    log_sums, shifts = np.empty_like(x), np.empty(x.shape[0], x.dtype)
    out = np.empty(offsets.size - 1, x.dtype)
    kernels.crf(x, chain, ids, offsets, log_sums, shifts, out)
    return Values(log_sums), Values(shifts)


def backward(x, *arguments):
    """The kernel, with as much scratch as it asks for."""
    kernels.crf_backward(x, *arguments, room(x, kernels.workspace_backward(spec_of(x), *x.shape)))


def viterbi(x, *arguments):
    kernels.viterbi(x, *arguments, room(x, x.size))


@EACH
def test_forward(cupy, dtype, lengths, tags):
    x, chain, ids, offsets = problem(dtype, lengths, tags)
    rows = x.array.shape[0]
    outputs = normal(dtype, rows, tags), normal(dtype, rows), normal(dtype, len(lengths))
    with launches(len(lengths) > 0):
        assert_versions_agree(kernels.crf, x, chain, ids, offsets, *outputs, **TOLERANCE)


@EACH
def test_backward(cupy, dtype, lengths, tags, monkeypatch):
    monkeypatch.setattr(launched, "CHUNK", 3)
    x, chain, ids, offsets = problem(dtype, lengths, tags)
    rows = x.array.shape[0]
    left = left_by_forward(x, chain, ids, offsets)
    dy, dx = normal(dtype, len(lengths), seed=5), normal(dtype, rows, tags)
    wanted = Chain(*[normal(dtype, *part.array.shape) for part in chain])
    # One for dx, two for the transitions, two each for start and end; a sum writes its zeros.
    with launches(7 if rows else 3 + (len(lengths) > 0)):
        assert_versions_agree(backward, x, chain, ids, offsets, *left, dy, dx, wanted, **TOLERANCE)


def test_gradients_are_made_where_wanted(cupy, dtype):
    x, chain, ids, offsets = problem(dtype, (3, 2), 4)
    left = left_by_forward(x, chain, ids, offsets)
    dy, dx = normal(dtype, 2), normal(dtype, 5, 4)
    for wanted, count in (((None, None, None), 1), ((None, normal(dtype, 4), None), 3)):
        with launches(count):
            assert_versions_agree(
                backward, x, chain, ids, offsets, *left, dy, dx, Chain(*wanted),
                **TOLERANCE,
            )  # fmt: skip


@EACH
def test_viterbi(cupy, dtype, lengths, tags):
    x, chain, _, offsets = problem(dtype, lengths, tags)
    x.array[...] = np.round(x.array)  # some are equal: the first counts
    with launches(len(lengths) > 0):
        assert_versions_agree(viterbi, x, chain, offsets, normal(dtype, x.array.shape[0]))


def test_bits_do_not_depend_on_the_other_sentences(cupy, dtype):
    x, chain, ids, offsets = problem(dtype, (3, 6, 2), 5)
    on_device = Chain(*[cupy.asarray(part.array) for part in chain])

    def run(rows, offsets):
        count = offsets.size - 1
        emissions = cupy.asarray(x.array[rows])
        log_sums, dx = [cupy.empty(emissions.shape, dtype) for _ in range(2)]
        shifts, out = cupy.empty(len(emissions), dtype), cupy.empty(count, dtype)
        kernels.crf(emissions, on_device, ids[rows], offsets, log_sums, shifts, out)
        dy = cupy.asarray(np.ones(count, dtype))
        left = (log_sums, shifts, dy, dx)
        backward(emissions, on_device, ids[rows], offsets, *left, Chain(None, None, None))
        queue().flush()
        return out.get(), dx.get()

    losses, dx = run(slice(None), offsets)
    middle = slice(*offsets[1:3])
    alone, dx_alone = run(middle, np.array([0, 6]))
    assert alone.tobytes() == losses[1:2].tobytes()
    assert dx_alone.tobytes() == dx[middle].tobytes()
