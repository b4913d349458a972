"""Threads share the rows of each batch of a region, and change no bit of what it gives."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels import batches
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime import parallel


@pytest.fixture(autouse=True)
def place():
    """Threads are the processor's: there is nothing to try on a GPU."""


@pytest.fixture
def threads():
    before = parallel.num_threads()
    yield parallel.set_num_threads
    parallel.set_num_threads(before)


class Pair(models.Module):
    def __init__(self, width):
        self.left = models.Linear(width, width)
        self.right = models.Linear(width, width)


@db.cell
def leaf(x, p):
    return F.tanh(p.left(x))


@db.cell
def pair(left, right, p):
    return F.tanh(p.left(left) * F.sigmoid(p.right(right)) + left)


def tree(leaves, p):
    """Pairs of pairs …; the last of an odd level is read twice."""
    level = [leaf(x, p) for x in leaves]
    while len(level) > 1:
        level = [
            pair(level[k], level[min(k + 1, len(level) - 1)], p) for k in range(0, len(level), 2)
        ]
    return level[0]


def trained(numbers):
    """Loss and gradients of trees with so many leaves."""
    db.seed(1)
    embed, p = models.Embedding(1000, 32), Pair(32)
    rng = np.random.default_rng(0)
    with db.Graph() as graph:
        words = [embed(graph, rng.integers(1000, size=n)) for n in numbers]
        roots = [tree([x[k] for k in range(n)], p) for x, n in zip(words, numbers, strict=True)]
        loss = F.mean([F.sum(root * root) for root in roots])
        graph.backward(loss)
        gradients = [embed.weight.grad.dense(), *[q.grad for q in p.parameters()]]
        return [each.tobytes() for each in (loss.value, *gradients)]


def test_bits_do_not_depend_on_the_number_of_threads(threads, monkeypatch):
    if library.reason():
        pytest.skip(library.reason())
    parts, tasks = [], batches.BatchPass.tasks

    def noted(*args):
        found = tasks(*args)
        parts.append(len(found))
        return found

    monkeypatch.setattr(batches, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(batches.BatchPass, "tasks", noted)
    numbers = np.random.default_rng(2).integers(17, 33, 24).tolist()
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(trained(numbers))
    assert found[0] == found[1] == found[2]
    assert parts == [1, 1, 2, 2, 3, 3]
