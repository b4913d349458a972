"""Small models whose plans, launches and bytes are asserted as exact numbers."""

import numpy as np

import dynbatch as db
from dynbatch import nodes as F


class Tagger:
    """Embedding, one tanh layer, and a projection into the loss."""

    def __init__(self, dtype: str = "float32", seed: int = 0) -> None:
        generator = np.random.default_rng(seed)

        def parameter(name: str, *shape: int) -> db.Parameter:
            return db.Parameter(generator.standard_normal(shape).astype(dtype), name)

        self.table = parameter("table", 20, 4)
        self.weight = parameter("weight", 6, 4)
        self.bias = parameter("bias", 6)
        self.projection = parameter("projection", 5, 6)

    def parameters(self) -> list[db.Parameter]:
        return [self.table, self.weight, self.bias, self.projection]

    def hidden(self, graph: db.Graph, words) -> db.Node:
        return F.tanh(F.linear(F.lookup(graph, self.table, words), self.weight, self.bias))

    def loss(self, graph: db.Graph, words, tags) -> db.Node:
        return F.cross_entropy(F.linear(self.hidden(graph, words), self.projection), tags)

    def losses(self, graph: db.Graph, batch) -> list[db.Node]:
        return [self.loss(graph, words, tags) for words, tags in batch]


def sentences(lengths, seed: int = 0):
    """Random words below 20 and tags below 5, one pair of arrays for each length."""
    generator = np.random.default_rng(seed)
    return [(generator.integers(0, 20, n), generator.integers(0, 5, n)) for n in lengths]


def train(model: Tagger, batch, **settings) -> float:
    """One forward and backward; the gradients stay in the parameters."""
    with db.Graph(dtype=model.table.dtype, **settings) as graph:
        loss = F.mean(model.losses(graph, batch))
        graph.backward(loss)
    return float(loss.value)


def trained_graph(lengths=(3, 1, 7)) -> db.Graph:
    """The graph of a tagger's forward and backward, closed."""
    model = Tagger()
    with db.Graph() as graph:
        graph.backward(F.mean(model.losses(graph, sentences(lengths))))
    return graph


def gradients(model: Tagger) -> list[np.ndarray]:
    """Copies of the gradients, dense; then they are forgotten."""
    found = []
    for parameter in model.parameters():
        grad = parameter.grad
        found.append(grad.dense() if isinstance(grad, db.RowSparse) else grad.copy())
        parameter.zero_grad()
    return found
