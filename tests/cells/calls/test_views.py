"""Rows of an input in the order of a cell's calls are read there, and get their gradient there."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.cells.calls.region_run import RegionRun


@pytest.fixture(autouse=True)
def place():
    """The processor: a GPU's regions gather all that they read."""


@pytest.fixture
def threads():
    before = db.num_threads()
    yield db.set_num_threads
    db.set_num_threads(before)


@pytest.fixture
def written(monkeypatch):
    """For each backward of a region, the streams whose gradients lie where those of inputs do."""
    found, backward = [], RegionRun.backward

    def noted(self, *args):
        tasks = backward(self, *args)
        found.append([[*group.written] for group in self.groups])
        return tasks

    monkeypatch.setattr(RegionRun, "backward", noted)
    return found


class Maps(models.Module):
    def __init__(self):
        self.inner = models.Linear(32, 32)
        self.other = models.Linear(32, 32)


@db.cell
def leaf(x, p):
    return F.tanh(p.inner(x))


@db.cell
def scaled(x, p):
    return F.tanh(x) * F.sigmoid(p.other(x))


@db.cell
def pair(left, right):
    return F.tanh(left * right + left)


def trained(cells, backwards=False):
    """Launches, and the gradient of words' vectors and of weights.

    Args:
        cells: called on each word.
        backwards: whether they are called on the last word of a sentence first.
    """
    db.seed(3)
    embed, p = models.Embedding(400, 32), Maps()
    with db.Graph() as graph:
        losses = []
        for k, count in enumerate((150, 3, 90)):
            x = embed(graph, np.arange(k, k + count))
            order = range(count)[:: -1 if backwards else 1]
            called = {t: [cell(x[t], p) for cell in cells] for t in order}
            root, *rest = [each for t in range(count) for each in called[t]]
            for each in rest:
                root = pair(root, each)
            losses.append(F.sum(root * root))
        graph.backward(F.mean(losses))
    gradients = [q.grad for q in p.parameters() if q.grad is not None]
    return graph.statistics.launches, embed.weight.grad.dense(), gradients


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cells", [(leaf,), (scaled,)])
def test_rows_in_order_are_neither_gathered_nor_given_back(cells, count, written, threads):
    threads(count)
    launches, of_words, of_weights = trained(cells)
    more, gathered, others = trained(cells, backwards=True)
    assert written == [[[0], []], [[], []]]
    assert more == launches + 3  # a gather in each pass, and rows given back
    np.testing.assert_array_equal(of_words, gathered)
    for one, other in zip(of_weights, others, strict=True):  # sums in another order
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_rows_that_two_cells_read_get_the_sum_of_both_gradients(written):
    _, of_words, _ = trained((leaf, scaled))
    _, gathered, _ = trained((leaf, scaled), backwards=True)
    assert written == [[[], [], []], [[], [], []]]
    np.testing.assert_array_equal(of_words, gathered)
