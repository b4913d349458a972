"""Batch normalisation over the rows of all sentences, or the pixels of all images, of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dynbatch import nodes as F
from dynbatch.arguments import listed, number, refused, sizes, switch
from dynbatch.backend import Array
from dynbatch.graph import Graph
from dynbatch.models.initial import ones, zeros
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.rows import divided_rows, joined_rows
from dynbatch.optim.combination import combine
from dynbatch.parameter import ModelBuffer

_HOW = "ys = norm(graph, xs), with the list of all sentences' nodes"


class BatchNorm(Module):
    """Each feature brought to mean 0 and variance 1 over all rows of the mini-batch, then scaled.

        y = (x - mean) / √(variance + eps) ⊙ weight + bias

    `ys = norm(graph, xs)` takes the list of all sentences' nodes, (T, D) or (D,), or images
    (H, W, D), and returns theirs. Rows are tokens or pixels; nothing is padded, so no row of zeros
    counts. While training, mean and variance are those of all N rows, the variance Σ (x - mean)² /
    N; by definition another sentence in the mini-batch then changes the result of all, and their
    gradients. In evaluation mode they are running means, and no sentence sees another.

    After a run, once however often values were computed in it, the running means become

        running ← (1 - momentum) · running + momentum · new

    where the new variance is divided by N - 1. Formulas and names are `torch.nn.BatchNorm1d`'s and
    `BatchNorm2d`'s, whose state dicts load as they are.

    Args:
        features: D.
        eps:      added to the variance.
        momentum: the share of a mini-batch in the running means, above 0; None for a plain mean of
                  all mini-batches.
        affine:   whether there are weight and bias.
        track_running_stats: whether there are running means; without, evaluation too uses the
                  mini-batch.

    Parameters: weight (D,) of ones, bias (D,) of zeros.
    Buffers: running_mean (D,) of zeros, running_var (D,) of ones, num_batches_tracked (1,).

    Raises:
        ArgumentError: while training, `xs` have fewer than two rows together, or the call is in a
            cell, which sees one sentence; `xs` is not a list.
        ShapeError:    a node has other features.

    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.

    Example:
        >>> import dynbatch as db
        >>> norm = db.models.BatchNorm(1)
        >>> with db.Graph() as graph:
        ...     xs = [F.input(graph, [[1.0], [3.0]]), F.input(graph, [[5.0]])]
        ...     [round(float(y), 2) for x in norm(graph, xs) for y in x.value.ravel()]
        [-1.22, 0.0, 1.22]
        >>> round(float(norm.running_mean.numpy()[0]), 2)
        0.3
    """

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        sizes(self, features=features)
        self.features = features
        self.eps = number(self, "eps", eps, "[0, inf)")
        self.momentum = None if momentum is None else number(self, "momentum", momentum, "(0, 1]")
        is_affine = switch(self, "affine", affine)
        self.weight = ones(features) if is_affine else None
        self.bias = zeros(features) if is_affine else None
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if switch(self, "track_running_stats", track_running_stats):
            self.running_mean = ModelBuffer(np.zeros(features, np.float32))
            self.running_var = ModelBuffer(np.ones(features, np.float32))
            self.num_batches_tracked = ModelBuffer(np.zeros(1, np.float32))

    def own_names(self, state: dict[str, Array], prefix: str) -> None:
        """PyTorch's count is a single number."""
        name = f"{prefix}num_batches_tracked"
        if name in state and not np.shape(state[name]):
            state[name] = state[name].reshape(1)

    def __call__(self, graph: Graph, xs: Sequence[Node]) -> list[Node]:
        xs = self._checked(xs)
        if not xs:
            return []
        mean, variance = self.running_mean, self.running_var
        if self.training or mean is None or variance is None:
            return self._by_batch(graph, xs)
        scale = self._scale(graph, F.parameter(graph, variance))
        shift = -F.parameter(graph, mean) * scale
        if self.bias is not None:
            shift = shift + F.parameter(graph, self.bias)
        return [x * scale + shift for x in xs]

    def _checked(self, xs: Sequence[Node]) -> list[Node]:
        if isinstance(xs, Node):
            raise refused("BatchNorm", "one node is given", "it joins the mini-batch", _HOW)
        xs = listed("BatchNorm", "xs", xs, _HOW)
        for x in xs:
            if not isinstance(x, Node):
                raise refused("BatchNorm", f"a {type(x).__name__} in xs", "nodes", _HOW)
            if x.shape[-1:] != (self.features,):
                x.refuse(
                    f"batch norm of {self.features} features for a value {x.shape}",
                    f"x.shape[-1] == {self.features}: features, or channels, stand last",
                    f"models.BatchNorm({x.shape[-1] if x.shape else 1}), or F.permute the value",
                )
        return xs

    def _by_batch(self, graph: Graph, xs: list[Node]) -> list[Node]:
        num_rows = sum([x.rows for x in xs])
        if graph.is_trace:
            raise refused(
                "BatchNorm", "called in a cell while training",
                "it joins the sentences of a mini-batch; a cell is a step, which sees one sentence",
                "call it outside of cells: norm(graph, xs)",
            )  # fmt: skip
        if num_rows < 2:
            raise refused(
                "BatchNorm", f"{num_rows} rows in all, while training",
                "a variance takes two rows or more", "more sentences, or model.eval()",
            )  # fmt: skip
        rows = joined_rows(xs)
        mean, variance = F.mean(rows, dim=0), F.var(rows, dim=0, correction=0)
        if self.training and self.running_mean is not None:
            graph.after_run([mean, variance], partial(self._track, num_rows))
        normalised = (rows - mean) * self._scale(graph, variance)
        if self.bias is not None:
            normalised = normalised + F.parameter(graph, self.bias)
        return divided_rows(normalised, xs)

    def _scale(self, graph: Graph, variance: Node) -> Node:
        scale = (variance + self.eps) ** -0.5
        return scale if self.weight is None else scale * F.parameter(graph, self.weight)

    def _track(self, num_rows: int, mean: Array, variance: Array) -> None:
        means, variances, count = self.running_mean, self.running_var, self.num_batches_tracked
        assert means is not None and variances is not None and count is not None
        combine([count.value], [np.ones_like(count.value)], 1.0, 1.0)
        share = 1.0 / float(count.numpy()[0]) if self.momentum is None else self.momentum
        unbiased = share * num_rows / (num_rows - 1)
        combine([means.value], [mean], 1.0 - share, share)
        combine([variances.value], [variance], 1.0 - share, unbiased)
