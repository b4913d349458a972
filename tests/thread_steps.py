"""Steps that `tests.threads` takes: each kind has a model of a seed, and small mini-batches.

The cells are those of this module and of `models`: every thread uses the same, with parameters of
its own. A step gives all that it computed as bytes, and leaves the model as it found it, but for
`training`, whose step 0 starts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.cells import cell, scan, stack
from dynbatch.driver import drive
from dynbatch.generation.generate import generate
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse

Step = Callable[[int], list[bytes]]
"""Takes the step of a number below `PERIOD`; gives the bytes of its results."""

Make = Callable[[int], Step]
"""Makes a model of a seed."""

PERIOD = 8
WIDTH = 4
VOCABULARY = 11

Loss = Callable[[Graph, Array], Node]
"""Makes the loss of one sentence, (T, WIDTH)."""


@cell
def gated_unit(x: Any, h: Any, p: Any) -> Any:
    """A scan's cell: a minimal gated unit."""
    f = F.sigmoid(F.linear(x, p.W_f) + F.linear(h, p.U_f, p.b))
    h = (1 - f) * h + f * F.tanh(F.linear(x, p.W_h) + F.linear(f * h, p.U_h))
    return h, h


@cell
def reader(x: Any, h: Any, p: Any, memory: Any) -> Any:
    """A step that is called: it attends to a matrix."""
    return F.tanh(F.linear(x, p.W_h) + F.linear(F.attention(h, memory, memory), p.U_h, p.b))


@cell
def dropped(x: Any, h: Any, p: Any) -> Any:
    """A step with dropout, whose calls are not nodes of their own."""
    return F.dropout(F.tanh(F.linear(x, p.W_h) + F.linear(h, p.U_h)), 0.25)


class Unit(models.Module):
    """Parameters of the cells above."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for name in ("W_f", "U_f", "W_h", "U_h"):
            setattr(self, name, Parameter(rng.uniform(-1, 1, (WIDTH, WIDTH)).astype(np.float32)))
        self.b = Parameter(rng.uniform(-1, 1, WIDTH).astype(np.float32))


def sentences(seed: int, number: int, count: int = 4) -> list[Array]:
    """The mini-batch of a step: matrices of 0 to 6 rows."""
    rng = np.random.default_rng([seed, number])
    lengths = rng.integers(0, 7, count)
    return [rng.standard_normal((length, WIDTH)).astype(np.float32) for length in lengths]


def words(seed: int, number: int, count: int = 3) -> list[tuple[Array, Array]]:
    """The mini-batch of a step, as pairs of ids."""
    rng = np.random.default_rng([seed, number])
    return [
        (rng.integers(2, VOCABULARY, size), rng.integers(2, VOCABULARY, size))
        for size in rng.integers(1, 6, count)
    ]


def trained(model: models.Module, seed: int, loss_of: Loss, count: int = 4, **options: Any) -> Step:
    """Forward and backward of a mini-batch: the loss, and all gradients, which are then cleared."""

    def step(number: int) -> list[bytes]:
        with Graph(seed=number, **options) as graph:
            losses = [loss_of(graph, sentence) for sentence in sentences(seed, number, count)]
            loss = F.mean(losses)
            graph.backward(loss)
        found = [loss.value]
        for parameter in model.parameters():
            grad = parameter.grad
            if grad is not None:
                found.append(grad.dense() if isinstance(grad, RowSparse) else grad)
        copies = [array.tobytes() for array in found]
        for parameter in model.parameters():
            parameter.zero_grad()
        return copies

    return step


def squares(x: Node) -> Node:
    """A loss of any matrix: what all its elements have a part in, each another."""
    return F.sum(x * x) + F.sum(F.tanh(x))


def lstm(seed: int) -> Step:
    """Two directions and two layers, with dropout between them."""
    model = models.LSTM(WIDTH, 5, layers=2, bidirectional=True, dropout=0.25, rng=seed)
    return trained(model, seed, lambda graph, xs: squares(model(F.input(graph, xs))))


def gru(seed: int) -> Step:
    """One direction, whose last state counts too."""
    model = models.GRU(WIDTH, 5, rng=seed)

    def loss(graph: Graph, xs: Array) -> Node:
        ys, (last,) = model(F.input(graph, xs), return_state=True)
        return squares(ys) + squares(last)

    return trained(model, seed, loss)


def own_cell(seed: int) -> Step:
    """A scan of a cell of the user's, a plan of the learned policy, forward again in backward."""
    unit = Unit(seed)

    def loss(graph: Graph, xs: Array) -> Node:
        ys, last = scan(gated_unit, F.input(graph, xs), WIDTH, unit, recompute="sqrt")
        return squares(ys) + squares(last)

    return trained(unit, seed, loss, count=9, policy="learned")  # so many that workers share it


def calls(seed: int) -> Step:
    """A chain of calls with memories, one with dropout, and a tree of a Tree-LSTM."""
    unit, tree = Unit(seed), models.BinaryTreeLSTM(WIDTH, WIDTH, rng=seed)

    class Both(models.Module):
        def __init__(self) -> None:
            self.unit, self.tree = unit, tree

    def loss(graph: Graph, sentence: Array) -> Node:
        xs = F.input(graph, np.concatenate((sentence, np.ones((1, WIDTH), np.float32))))
        memory = F.tanh(xs)
        states: list[Any] = [reader(xs[0], WIDTH, unit, memory)]
        for k in range(1, len(xs)):
            states.append(reader(xs[k], states[-1], unit, memory))
        states.append(dropped(xs[0], states[-1], unit))
        nodes = [tree.leaf(xs[k]) for k in range(len(xs))]
        while len(nodes) > 1:
            right, left = nodes.pop(), nodes.pop()
            nodes.append(tree.compose(left, right))
        return squares(stack(states)) + squares(nodes[0][0])

    return trained(Both(), seed, loss)


def attention(seed: int) -> Step:
    """Attention of each sentence to itself, and a layer norm."""
    model = models.Linear(WIDTH, 3 * WIDTH, rng=seed)

    def loss(graph: Graph, xs: Array) -> Node:
        query, keys, values = F.chunk(model(F.input(graph, xs)), 3)
        return squares(F.attention(query, keys, values, heads=2, causal=True))

    return trained(model, seed, loss)


def _translator(seed: int) -> models.Seq2Seq:
    return models.Seq2Seq(VOCABULARY, VOCABULARY, embed=4, hidden=4, dropout=0.25, rng=seed)


def training(seed: int) -> Step:
    """`PERIOD` updates of a translator by Adam, with clipping; step 0 begins anew."""
    model = _translator(seed)
    before = model.state_dict()
    optimizer = optim.Adam(model, lr=0.01)

    def step(number: int) -> list[bytes]:
        nonlocal optimizer
        if number == 0:
            model.load_state_dict(before)
            optimizer = optim.Adam(model, lr=0.01)
        with Graph(seed=number) as graph:
            losses = [model.loss(graph, *pair) for pair in words(seed, number)]
            loss = F.mean(losses)
            graph.backward(loss, memory_limit="1 MB")
        norm = optim.clip_grad_norm_(model, 0.5)
        optimizer.step()
        found = [loss.value, np.array(norm), *[p.value for p in model.parameters()]]
        return [array.tobytes() for array in found]

    return step


def search(seed: int) -> Step:
    """Beam search of a translator."""
    return _searched(_translator(seed), seed)


def _searched(model: models.Seq2Seq, seed: int) -> Step:
    def step(number: int) -> list[bytes]:
        sources = [source for source, _ in words(seed, number)]
        settings = {"max_new_tokens": 4, "eos_token_id": model.end}
        found = generate(model, sources, num_beams=2, **settings)
        return [repr(best).encode() for best in found]

    return step


def driven(seed: int) -> Step:
    """Sentences that read their own values and go on by them."""
    model = models.Linear(WIDTH, WIDTH, rng=seed)

    def settle(graph: Graph, xs: Array) -> Generator[Node, Array, bytes]:
        x, steps = F.sum(F.input(graph, xs), dim=0), 0
        while steps < 3 and np.abs((yield x)).sum() > 1:
            x, steps = F.tanh(model(x)), steps + 1
        return (yield x).tobytes()

    def step(number: int) -> list[bytes]:
        with Graph(seed=number) as graph:
            return drive(graph, [settle(graph, xs) for xs in sentences(seed, number)])

    return step


def shared_model(seed: int) -> Step:
    """Losses and searches of a translator that is not trained meanwhile."""
    model = _translator(seed)
    searched = _searched(model, seed)

    def step(number: int) -> list[bytes]:
        with Graph(seed=number, grad=False) as graph:
            losses = graph.values([model.loss(graph, *pair) for pair in words(seed, number)])
        return [*[loss.tobytes() for loss in losses], *searched(number)]

    model.eval()
    return step


def _kinds(*makes: Make) -> dict[str, Make]:
    return {make.__name__: make for make in makes}


OWN = _kinds(lstm, gru, own_cell, calls, attention, training, search, driven)
"""Steps with a model of its own in each thread."""

SHARED = _kinds(shared_model)
"""Steps of all threads with one model."""
