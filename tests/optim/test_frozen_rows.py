"""Rows of a matrix that stay while others are trained, by every optimizer."""

import copy

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ShapeError
from dynbatch.kernels.runtime.transfer import to_device, to_host
from dynbatch.testing import check_gradient, load_graph
from tests.optim.test_optimizer import ALGORITHMS, every_algorithm, sparse_gradient
from tests.parallel.ranks import on_ranks

FROZEN = [0, 3, 4, 8]
TRAINED = [1, 2, 5, 6, 7]


def table_of(frozen=FROZEN, dtype=np.float32, seed=0):
    table = db.Parameter(np.random.default_rng(seed).standard_normal((9, 5)).astype(dtype))
    table.frozen_rows = frozen
    return table


def steps_with_and_without_freezing(make, is_sparse, device):
    """The table at first, after steps with frozen rows, and after them without."""
    table, free = (table_of(frozen, np.float64).to(device) for frozen in (FROZEN, None))
    start = table.numpy()
    optimizers = [make([table]), make([free])]
    rng = np.random.default_rng(1)
    for count in (4, 0, 9, 2):
        gradient = sparse_gradient(rng, table.shape, count).to(device)
        for parameter, optimizer in zip((table, free), optimizers, strict=True):
            parameter.grad = gradient if is_sparse else gradient.dense()
            optimizer.step()
    return start, table.numpy(), free.numpy()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("is_sparse", [True, False])
def test_frozen_rows_keep_their_bits_and_others_move_as_without_freezing(name, is_sparse):
    start, frozen, free = steps_with_and_without_freezing(ALGORITHMS[name], is_sparse, "cpu")
    assert np.array_equal(frozen[FROZEN], start[FROZEN])
    assert np.array_equal(frozen[TRAINED], free[TRAINED])
    has_moved = free != start
    if name.startswith(("Rprop", "Lion")):  # whose numbers may come back
        has_moved = has_moved.any(axis=1)
    assert has_moved.all()


@every_algorithm
def test_rows_frozen_later_stay_whatever_was_learned_of_them_before(make):
    table = table_of(None, np.float64)
    optimizer = make([table])
    for frozen in (None, FROZEN):
        table.frozen_rows = frozen
        before = table.numpy()
        table.grad = np.ones(table.shape)
        optimizer.step()
        assert (table.value != before).all(axis=1).tolist() == [
            frozen is None or row not in frozen for row in range(9)
        ]


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("name", ["SGD-lr", "SGD-lr-momentum", "AdamW-lr"])
def test_frozen_rows_keep_their_bits_on_a_gpu(cuda, name, is_sparse):
    start, frozen, free = steps_with_and_without_freezing(ALGORITHMS[name], is_sparse, "cuda")
    assert np.array_equal(frozen[FROZEN], start[FROZEN])
    assert np.array_equal(frozen[TRAINED], free[TRAINED])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_probabilities_of_frozen_rows_are_not_divided_again(cuda, momentum):
    """Their sums are 1 but for rounding."""
    values = np.abs(table_of(dtype=np.float32).value)
    values /= values.sum(axis=1, keepdims=True) * np.float32(1.25)
    for device in ("cpu", "cuda"):
        table = db.Parameter(values.copy()).to(device)
        table.frozen_rows = FROZEN
        optimizer = optim.EG([table], momentum=momentum)
        table.grad = to_device(values, table.device)
        optimizer.step()
        found = table.numpy()
        assert np.array_equal(found[FROZEN], values[FROZEN])
        assert found[TRAINED].sum(axis=1) == pytest.approx(1)


def test_frozen_rows_stay_where_ranks_share_the_state():
    def trained(communicator):
        table = table_of(dtype=np.float64)
        optimizer = optim.AdamW([table], lr=0.1)
        if communicator is not None:
            optimizer.shard(communicator)
        rng = np.random.default_rng(1)
        for count in (4, 0, 9):
            table.grad = sparse_gradient(rng, table.shape, count)
            optimizer.step()
        return table.numpy()

    for found in on_ranks(4, trained):
        assert np.array_equal(found, trained(None))


def sentences_loss(graph, embed, tied):
    vectors = [embed(graph, ids) for ids in ([0, 1, 1, 5], [3, 0], [6])]
    if tied:
        return F.sum([F.cross_entropy(F.linear(x, embed.weight), [2] * len(x)) for x in vectors])
    return F.sum([F.sum(F.tanh(x)) for x in vectors])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_the_gradient_leaves_frozen_rows_out(tied, check):
    gradients = []
    for frozen in (FROZEN, None):
        embed = models.Embedding.of(table_of(), frozen_rows=frozen)
        embed.weight.frozen_rows = frozen
        with db.Graph(check=check) as graph:
            graph.backward(sentences_loss(graph, embed, tied))
        gradients.append(embed.weight.grad)
    found, free = gradients
    if not tied:
        assert found.rows.tolist() == [1, 5, 6] and free.rows.tolist() == [0, 1, 3, 5, 6]
    expected = np.array(free)
    expected[FROZEN] = 0
    assert np.array_equal(np.array(found), expected)


def test_the_gradient_is_the_same_on_a_gpu(cuda):
    for tied in (False, True):
        for frozen in (FROZEN, range(9)):
            gradients = []
            for device in ("cpu", "cuda"):
                embed = models.Embedding.of(table_of(frozen, np.float64)).to(device)
                with db.Graph(device=device, dtype="float64") as graph:
                    graph.backward(sentences_loss(graph, embed, tied))
                grad = embed.weight.grad
                gradients.append(to_host(grad) if tied else np.asarray(grad))
            assert gradients[0] == pytest.approx(gradients[1], abs=1e-12)


def test_clipping_does_not_count_frozen_rows():
    embed = models.Embedding.of(table_of())
    with db.Graph() as graph:
        graph.backward(sentences_loss(graph, embed, tied=True))
    trained = np.asarray(embed.weight.grad)[TRAINED]
    norm = optim.clip_grad_norm_(embed, np.inf)
    assert norm == pytest.approx(np.sqrt(np.sum(np.square(trained, dtype=np.float64))))


def test_rows_are_given_by_number_or_mask_and_none_frees_them():
    table = table_of(None)
    assert table.frozen_rows is None and table.trained_rows is None
    table.frozen_rows = np.isin(np.arange(9), FROZEN)
    assert table.frozen_rows.tolist() == FROZEN and table.trained_rows.tolist() == TRAINED
    assert repr(table) == "Parameter('parameter', float32(9, 5), 4 rows frozen)"
    table.frozen_rows = [7, 2, 7]
    assert table.frozen_rows.tolist() == [2, 7]
    for nothing in (None, [], np.zeros(9, bool)):
        table.frozen_rows = nothing
        assert table.frozen_rows is None


@pytest.mark.parametrize(
    "rows, error, said",
    [
        ([9], ArgumentError, r"frozen_rows has 9.\n  rule: 0 <= row < 9"),
        ([2, -1], ArgumentError, "frozen_rows has -1"),
        ([True, False], ShapeError, r"frozen_rows \(2,\) of an array \(9, 5\)"),
        ([[1]], ShapeError, "row numbers of a matrix, or a mask"),
        ([1.0], DtypeError, "frozen_rows of float64"),
    ],
)
def test_what_is_not_rows_is_refused(rows, error, said):
    table = table_of()
    with pytest.raises(error, match=said):
        table.frozen_rows = rows
    with pytest.raises(error, match=said):
        models.Embedding(9, 5, frozen_rows=rows)
    assert table.frozen_rows.tolist() == FROZEN


def test_a_vector_has_no_rows():
    with pytest.raises(ShapeError, match=r"of an array \(3,\)"):
        db.Parameter(np.ones(3)).frozen_rows = [1]


def test_copies_and_dumps_have_the_same_rows_frozen(tmp_path):
    bag = models.EmbeddingBag(9, 5, frozen_rows=FROZEN)
    assert copy.deepcopy(bag).weight.frozen_rows.tolist() == FROZEN
    assert bag.astype("float64").weight.frozen_rows.tolist() == FROZEN
    with db.Graph(dtype="float64") as graph:
        graph.backward(F.sum(bag(graph, [[1, 3], [5]])))
        graph.dump(tmp_path / "graph.npz")
    with load_graph(tmp_path / "graph.npz") as loaded:
        loaded.run()
        assert loaded.parameters[0].grad.rows.tolist() == [1, 5]


def test_the_gradient_of_a_table_with_frozen_rows_is_checked_in_the_others():
    embed = models.Embedding.of(table_of())
    check_gradient(lambda graph: sentences_loss(graph, embed, tied=True), parameters=embed)
