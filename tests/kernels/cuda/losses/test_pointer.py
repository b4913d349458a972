import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.attention.packed import pair_offsets
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.losses import pointer as kernels
from dynbatch.kernels.losses.pointer import Choices
from tests.cuda import fake_cupy
from tests.kernels.cuda.attention.test_dot_product import room
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

# Keys for a part of a warp, for several warps, and for more than a block has threads.
CASES = [
    (((2, 3), (0, 4), (1, 1), (0, 0), (4, 5)), 3),
    (((1, 40), (2, 33)), 33),
    (((2, 300),), 1),
    (((0, 0),), 2),
    ((), 2),
]
EACH = pytest.mark.parametrize(("lengths", "width"), CASES)
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def exercise(kernels):
    """Keys for several warps."""
    tokens, width = 70, 33
    q, k, dq = [fake_cupy.zeros((tokens, width), np.float32) for _ in range(3)]
    p, slopes = [fake_cupy.zeros(2 * tokens, np.float32) for _ in range(2)]
    losses, weights, dy = [fake_cupy.zeros(2, np.float32) for _ in range(3)]
    ids = fake_cupy.zeros(2, np.int32)
    offsets = [fake_cupy.asarray(np.array([0, n])) for n in (2, tokens)]
    tables = (*offsets, fake_cupy.asarray(np.array([0])), 1)
    args = (q, k, p, losses, ids, weights, *tables, width)
    kernels.launch("pointer_loss", (2,), (256,), args)
    args = (k, p, dy, slopes, dq, ids, weights, *tables, width)
    kernels.launch("pointer_loss_backward", (2,), (256,), args)


def problem(dtype, lengths, width):
    """Queries and keys, choices and weights, some of them 0."""
    pairs = np.array(lengths, np.int64).reshape(-1, 2)
    offsets = np.concatenate((np.zeros((1, 2), np.int64), pairs.cumsum(axis=0)))
    rng = np.random.default_rng(0)
    ids = np.concatenate(
        [np.zeros(0, np.int64), *[rng.integers(0, k + (q == 0), q) for q, k in pairs]]
    )
    weights = rng.uniform(0.5, 2, ids.size).astype(dtype)
    weights[ids % 3 == 2] = 0
    arrays = [normal(dtype, rows, width, seed=k) for k, rows in enumerate(offsets[-1])]
    return Choices(*arrays, *np.ascontiguousarray(offsets.T)), ids, weights


def probabilities_of(packed, ids, weights):
    """Probabilities after the NumPy kernel."""
    host = packed._replace(queries=packed.queries.array, keys=packed.keys.array)
    p = np.empty(int(pair_offsets(packed)[-1]), host.keys.dtype)
    kernels.pointer_loss(host, ids, weights, p, np.empty(ids.size, p.dtype))
    return Values(p)


@EACH
def test_forward(cupy, dtype, lengths, width):
    packed, ids, weights = problem(dtype, lengths, width)
    outputs = normal(dtype, int(pair_offsets(packed)[-1])), Values(np.zeros(ids.size, dtype))
    with launches(ids.size > 0):
        assert_versions_agree(kernels.pointer_loss, packed, ids, weights, *outputs, **TOLERANCE)


def backward(packed, ids, weights, p, dy, wanted):
    """The kernel, with as much scratch as it asks for."""
    lengths = [np.diff(offsets).tolist() for offsets in packed[2:]]
    scratch = room(p, kernels.workspace_backward(spec_of(p), *lengths))
    kernels.pointer_loss_backward(packed, ids, weights, p, dy, wanted, scratch)


@EACH
@pytest.mark.parametrize("which", ["both", "queries", "keys"])
def test_backward(cupy, dtype, lengths, width, which):
    packed, ids, weights = problem(dtype, lengths, width)
    p, dy = probabilities_of(packed, ids, weights), normal(dtype, len(lengths), seed=5)
    wanted = packed._replace(
        **{
            name: Values(np.empty_like(getattr(packed, name).array))
            for name in ("queries", "keys") if which in ("both", name)
        },
        **{name: None for name in ("queries", "keys") if which not in ("both", name)},
    )  # fmt: skip
    with launches((ids.size > 0) + (which != "queries" and packed.keys.array.size > 0)):
        assert_versions_agree(backward, packed, ids, weights, p, dy, wanted, **TOLERANCE)


def test_bits_do_not_depend_on_the_other_sentences(cupy, dtype):
    packed, ids, weights = problem(dtype, ((2, 3), (4, 40), (1, 2)), 5)

    def run(rows, columns, offsets):
        q, k = cupy.asarray(packed.queries.array[rows]), cupy.asarray(packed.keys.array[columns])
        given = Choices(q, k, *offsets)
        p, losses = cupy.empty(int(pair_offsets(given)[-1]), dtype), cupy.empty(len(q), dtype)
        wanted = Choices(cupy.empty(q.shape, dtype), cupy.empty(k.shape, dtype), *offsets)
        dy = cupy.asarray(np.ones(offsets[0].size - 1, dtype))
        kernels.pointer_loss(given, ids[rows], weights[rows], p, losses)
        backward(given, ids[rows], weights[rows], p, dy, wanted)
        queue().flush()
        return losses.get(), wanted.queries.get(), wanted.keys.get()

    whole = slice(None)
    together = run(whole, whole, packed[2:])
    parts = [slice(*offsets[1:3]) for offsets in packed[2:]]
    alone = run(*parts, [np.array([0, part.stop - part.start]) for part in parts])
    for one, all_, part in zip(alone, together, (parts[0], *parts), strict=True):
        assert one.tobytes() == all_[part].tobytes()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_the_scores_of_an_ignored_query_may_be_anything(cupy, dtype, bad):
    packed, ids, weights = problem(dtype, ((3, 4), (4, 40)), 5)
    weights[[1, 5]] = 0
    packed.queries.array[[1, 5]] = bad
    outputs = normal(dtype, int(pair_offsets(packed)[-1])), Values(np.full(ids.size, np.nan, dtype))
    with np.errstate(invalid="ignore"):
        found = assert_versions_agree(
            kernels.pointer_loss, packed, ids, weights, *outputs, **TOLERANCE
        )
        assert np.isfinite(found[-1]).all() and not found[-1][[1, 5]].any()
        p, dy = probabilities_of(packed, ids, weights), normal(dtype, 2, seed=5)
    wanted = packed._replace(queries=Values(np.full_like(packed.queries.array, np.nan)), keys=None)
    found = assert_versions_agree(backward, packed, ids, weights, p, dy, wanted, **TOLERANCE)
    gradients = found[-1]
    assert gradients.shape == packed.queries.array.shape
    assert np.isfinite(gradients).all() and not gradients[[1, 5]].any()
