"""Layers that work token by token: embedding, linear map, normalisation, dropout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Self

from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import number, refused, shown, sizes, switch
from dynbatch.errors import ShapeError
from dynbatch.models.adapter import Adaptable
from dynbatch.models.first_input import SizedByInput
from dynbatch.models.initial import Rng, generator, normal, ones, uniform_pair, zeros
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node, Owner
from dynbatch.parameter import Parameter

MISSING: Any = object()
"""Stands for an argument that was not given."""


class Embedding(Adaptable):
    """A table of vectors. `embed(graph, ids)` gives one sentence's, ids (T,) -> (T, D).

    There is no padding row, as nothing is padded. The gradient is row-sparse: an update touches
    the words of the mini-batch only, where the optimizer allows it.

    Args:
        num_embeddings: rows of the table, V.
        dim:            features, D.
        freeze:         keep the table as it is.
        frozen_rows:    rows of it to keep, by number or as a mask: see `Parameter.frozen_rows`.
        scale:          deviation of the initial values; 1 as PyTorch's. Adam moves a row by about
                        its learning rate an update, so that words seen a few dozen times are
                        learned from 0.1, and hardly from 1.
        rng:            generator or seed of the initial values, normally distributed; by default
                        they follow from `dynbatch.seed`.

    Parameters: weight (V, D).

    Raises:
        ArgumentError: called with ids and no graph.
    """

    def __init__(
        self,
        num_embeddings: int,
        dim: int,
        *,
        freeze: bool = False,
        frozen_rows: Any = None,
        scale: float = 1.0,
        rng: Rng = None,
    ) -> None:
        sizes(self, num_embeddings=num_embeddings, dim=dim)
        scale = number(self, "scale", scale, "[0, inf)")
        self.weight = normal(generator(rng), (num_embeddings, dim), scale)
        self.weight.frozen = freeze
        if frozen_rows is not None:
            self.weight.frozen_rows = frozen_rows

    @classmethod
    def of(cls, weight: Any, *, freeze: bool = False, frozen_rows: Any = None) -> Self:
        """The embedding of a given table, such as `PretrainedVectors.table` makes.

        Args:
            weight:      (V, D) array of floats, or a `Parameter`; kept where a parameter keeps it.
            freeze:      keep the table as it is.
            frozen_rows: rows of it to keep, such as `PretrainedVectors.found` tells.

        Raises:
            ShapeError: it is not a matrix.
        """
        made = cls.__new__(cls)
        made.weight = weight if isinstance(weight, Parameter) else Parameter(weight)
        if len(made.weight.shape) != 2:
            raise ShapeError.at_caller(
                f"Embedding.of: a table {made.weight.shape}.\n  rule: (V, D), a row for each id\n"
                "  fix:  table.reshape(V, D)"
            )
        if switch("Embedding.of", "freeze", freeze):
            made.weight.frozen = True
        if frozen_rows is not None:
            made.weight.frozen_rows = frozen_rows
        return made

    def __call__(self, graph: Owner, ids: ArrayLike = MISSING) -> Node:
        if ids is MISSING or not hasattr(graph, "add_light"):
            said = "ids alone" if ids is MISSING else f"a {type(graph).__name__} as its graph"
            raise refused(
                "Embedding", f"called with {said}",
                "a sentence's vectors are a node of one graph",
                "embed(graph, ids), inside `with db.Graph() as graph:`",
            )  # fmt: skip
        return self._read(lambda table: F.lookup(graph, table, ids))

    def positions(self, x: Node, first: int = 0) -> Node:
        """The rows `first`, `first` + 1, … for the tokens of x (T, E) -> (T, D).

        Of x the length alone is read: see `F.positions`.
        """
        return self._read(lambda table: F.positions(x, table, first))

    def _read(self, rows_of: Callable[[Parameter], Node]) -> Node:
        return self.adapted(rows_of, rows_of(self.weight))


class EmbeddingBag(Embedding):
    """Sums or means of a table's vectors, one for each bag of ids: sparse features of words.

    `embed(graph, bags)` gives one sentence's, bags of T words -> (T, D); a bag without ids gives 0.
    All bags of a mini-batch are one look-up and one reduction. The gradient is row-sparse.

    Args:
        num_embeddings, dim, freeze, frozen_rows, scale, rng: as for `Embedding`.
        mode: "mean" or "sum".

    Parameters: weight (V, D).

    Source: `torch.nn.EmbeddingBag`, whose modes these are.
    """

    def __init__(
        self,
        num_embeddings: int,
        dim: int,
        *,
        mode: str = "mean",
        freeze: bool = False,
        frozen_rows: Any = None,
        scale: float = 1.0,
        rng: Rng = None,
    ) -> None:
        super().__init__(
            num_embeddings, dim, freeze=freeze, frozen_rows=frozen_rows, scale=scale, rng=rng
        )
        self.mode = _mode(mode)

    @classmethod
    def of(
        cls, weight: Any, *, freeze: bool = False, frozen_rows: Any = None, mode: str = "mean"
    ) -> Self:
        """The sums or means of a given table's rows; see `Embedding.of`."""
        made = super().of(weight, freeze=freeze, frozen_rows=frozen_rows)
        made.mode = _mode(mode)
        return made

    def __call__(self, graph: Owner, ids: Any = MISSING) -> Node:
        bags = [] if ids is MISSING else ids
        try:
            lengths = [len(bag) for bag in bags]
        except TypeError:
            raise refused(
                "EmbeddingBag", f"{shown(ids)} as bags", "a list of ids for each word",
                "embed(graph, [[3, 8], [], [5]]); embed(graph, [ids]) for one bag",
            ) from None  # fmt: skip
        flat = ids if ids is MISSING else [*chain.from_iterable(bags)]
        x = super().__call__(graph, flat)
        return (F.segment_sum if self.mode == "sum" else F.segment_mean)(x, lengths)


def _mode(mode: str) -> str:
    if mode not in ("mean", "sum"):
        raise refused(
            "EmbeddingBag", f"mode is {mode!r}", 'mode is "mean" or "sum"',
            "F.max over rows of an Embedding, bag by bag, gives maxima",
        )  # fmt: skip
    return mode


class Linear(SizedByInput, Adaptable):
    """y = x Wᵀ + b for every token, x (T, I) or (I,) -> (T, O) or (O,).

    Args:
        in_features, out_features: I and O. Where I is None it is that of the first input, and of a
              state dict; until then the parameters can be given to an optimizer, and not be read.
        bias: whether b is there.
        rng:  generator or seed of the initial values, uniform in ±1/√I as PyTorch's.

    Parameters: weight (O, I), bias (O,).
    """

    def __init__(
        self, in_features: int | None, out_features: int, bias: bool = True, *, rng: Rng = None
    ) -> None:
        width = self._width("in_features", in_features)
        sizes(self, out_features=out_features)
        switch(self, "bias", bias)
        rng = generator(rng)
        self.weight, self.bias = self._pair_of_width(
            width, bias, lambda width: uniform_pair(rng, (out_features, width), out_features, bias)
        )

    @classmethod
    def of(cls, weight: Parameter, bias: Parameter | None = None) -> Linear:
        """The linear map of given parameters: of an embedding's table, or with other first values.

        Args:
            weight, bias: (O, I) and (O,), or None for no bias.
        """
        made = cls.__new__(cls)
        made.weight, made.bias = weight, bias
        return made

    def __call__(self, x: Node) -> Node:
        if self._awaited is not None:
            self._see(x)
        return self.adapted(x, F.linear(x, self.weight, self.bias))


class LayerNorm(Module):
    """Features of each token brought to mean 0 and variance 1, then scaled and shifted.

    Args:
        features: D.
        eps:      added to the variance.
        bias:     whether they are shifted.

    Parameters: weight (D,) of ones, bias (D,) of zeros.
    """

    def __init__(self, features: int, eps: float = 1e-5, bias: bool = True) -> None:
        sizes(self, features=features)
        self.weight = ones(features)
        self.bias = zeros(features) if switch(self, "bias", bias) else None
        self.eps = number(self, "eps", eps, "[0, inf)")

    def __call__(self, x: Node) -> Node:
        return F.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Features of each token divided by their root mean square, then scaled, as `torch.nn.RMSNorm`.

    Args:
        features: D.
        eps:      added to the mean square; PyTorch's own is the smallest step of the dtype above 1.

    Parameters: weight (D,) of ones.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        sizes(self, features=features)
        self.weight = ones(features)
        self.eps = number(self, "eps", eps, "[0, inf)")

    def __call__(self, x: Node, heads: int = 1) -> Node:
        """x (T, heads · D), each head normalised by itself."""
        return F.rms_norm(x, self.weight, self.eps, heads)


class Dropout(Module):
    """While training, every element is 0 with probability p, and the others grow by 1 / (1 - p).

    The mask depends on the graph's seed and on the sentence, not on the mini-batch around it.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = number(self, "p", p, "[0, 1]")

    def __call__(self, x: Node) -> Node:
        return F.dropout(x, self.p, self.training)
