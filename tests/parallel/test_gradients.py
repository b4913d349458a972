"""`sum_gradients`: all kinds of gradients, ranks that have none, and models that differ."""

import numpy as np
import pytest

from dynbatch import parallel
from dynbatch.errors import ParallelError
from dynbatch.parallel import gradients
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.parallel.ranks import on_ranks

SHAPES = {"every": (3, 4), "second": (5,), "never": (2, 2), "fixed": (2,), "table": (9, 3),
          "tied": (4, 2), "unread": (3, 2), "double": (7, 5)}  # fmt: skip


def rows(shape, chosen, rng):
    values = rng.standard_normal((len(chosen), shape[1]), np.float32)
    return RowSparse(np.array(chosen, np.int64), values, shape)


def given(rank):
    """Parameters with gradients as the graph of one rank may leave them."""
    rng = np.random.default_rng(rank)
    own = {name: Parameter(np.zeros(shape, np.float32), name) for name, shape in SHAPES.items()}
    own["double"].replace(np.zeros(SHAPES["double"]))
    own["fixed"].frozen = True
    own["every"].grad = rng.standard_normal((3, 4), np.float32)
    own["fixed"].grad = np.full(2, rank, np.float32)
    own["double"].grad = rng.standard_normal((7, 5))
    own["unread"].grad = rows((3, 2), [], rng) if rank else None
    if rank == 1:
        own["second"].grad = rng.standard_normal(5, np.float32)
        own["tied"].grad = rng.standard_normal((4, 2), np.float32)
    else:
        own["table"].grad = rows((9, 3), [[0, 4, 8], [], [1, 4]][rank], rng)
        own["tied"].grad = rows((4, 2), [rank], rng)
    return own


def dense(grad):
    return grad.dense() if isinstance(grad, RowSparse) else grad


def wanted(name, size):
    """The sum in the order of ranks."""
    own = [given(rank)[name].grad for rank in range(size)]
    return sum([dense(grad) for grad in own if grad is not None])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_get_the_sum_of_all(size, monkeypatch):
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 64)

    def do(communicator):
        own = given(communicator.rank)
        parallel.sum_gradients(communicator, own.values())
        return {name: each.grad for name, each in own.items()}

    for rank, found in enumerate(on_ranks(size, do)):
        assert found.pop("never") is None
        np.testing.assert_array_equal(found.pop("fixed"), np.full(2, rank))
        assert isinstance(found["table"], RowSparse)
        for name, grad in found.items():
            if size > 1 or grad is not None:
                np.testing.assert_array_equal(dense(grad), wanted(name, size), err_msg=name)
    if size == 3:
        np.testing.assert_array_equal(found["table"].rows, [0, 1, 4, 8])
        assert isinstance(found["unread"], RowSparse)


def test_what_travels():
    """Dense gradients travel in one message, rows in one, and their values in one a dtype."""
    seen = []

    def do(communicator):
        own, exchange = given(communicator.rank), communicator._host.exchange

        def counted(sent, *more):
            nbytes = [0 if each is None else each.nbytes for each in sent]
            if communicator.rank == 0:
                seen.append(nbytes[1])
            exchange(sent, *more)

        communicator._host.exchange = counted
        parallel.sum_gradients(communicator, own.values())

    on_ranks(2, do)
    sizes, _header, *rest = seen
    assert sizes == 8
    assert rest == [4 * (12 + 5 + 8), 8 * 35, 8 * 3, 4 * 3 * 3]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda own: own.pop("double"), "parameter 6: 'double'.* on ranks 0, 2; nothing on rank 1"),
        (lambda own: own["every"].replace(np.zeros((3, 4))), "'every', float32.*float64"),
        (lambda own: setattr(own["fixed"], "frozen", False), "'table'.* ranks 0, 2; 'fixed'"),
    ],
)
def test_models_that_differ_are_told_by_name(change, told):
    def do(communicator):
        own = given(0)
        if communicator.rank == 1:
            change(own)
        parallel.sum_gradients(communicator, own.values())

    with pytest.raises(ParallelError, match=told):
        on_ranks(3, do)


def test_values_that_differ_are_found_at_the_first_sum():
    """Models made from other seeds; later no value is looked at."""

    def do(communicator):
        start = np.full((2, 2), 0.0 if communicator.rank < 2 else 1e-7, np.float32)
        same, other = Parameter(np.ones(3, np.float32), "same"), Parameter(start, "other")
        same.grad, other.grad = np.ones(3, np.float32), np.ones((2, 2), np.float32)
        parallel.sum_gradients(communicator, [same])
        same.value[0] = communicator.rank
        parallel.sum_gradients(communicator, [same])
        same.value[0] = 1
        told = r"digest of parameter 1, 'other': \w+ on ranks 0, 1; \w+ on rank 2"
        with pytest.raises(ParallelError, match=told):
            parallel.sum_gradients(communicator, [same, other])
        assert (other.grad == 1).all()
        communicator.broadcast(other.value)
        parallel.sum_gradients(communicator, [same, other])
        return float(other.grad[0, 0])

    assert on_ranks(3, do) == [3.0] * 3
