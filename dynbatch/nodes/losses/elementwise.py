"""Losses of one sentence, scalars as PyTorch defines them; `F.mean` averages a list of losses.

A "mean" over nothing (a sentence without tokens, or only ignored ones) is 0.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dynbatch.arguments import switch
from dynbatch.backend import Array
from dynbatch.kernels import arrays
from dynbatch.kernels.losses import elementwise as kernels
from dynbatch.kernels.scalar.pair import Pair
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.losses.targets import TargetRule, check_reduction, class_targets
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.sources import input
from dynbatch.ragged import Ragged


class NllLoss(Operation):
    """loss = -Σ_t weight_t · x[t, target_t].

    Batches with:  every other NllLoss of the same V. Its gradient needs no value.
    """

    __slots__ = ("ids", "rule", "weights")
    exact = True
    shape_rule = "x (T, V)|(V,), ids (T,)|(1,) -> ()"
    given_attributes = ("ids", "weights")
    ids: Array
    weights: Array
    rule: TargetRule

    def given(self, array: Array) -> tuple[Array, Array]:
        return self.rule.weighted(array, self.graph.dtype)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        ids, weights = batch.concat("ids"), batch.concat("weights")
        kernels.pick_loss(x.values, ids, weights, x.offsets, y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            ids, weights = batch.concat("ids"), batch.concat("weights")
            kernels.pick_loss_backward(dy.flat, ids, weights, dx.offsets, dx.values)


class ElementwiseLoss(Operation):
    """Base of losses Σ_i f(x_i, t_i) · scale, where input and target have one shape.

    Batches with:  every other one of its type, whatever the shapes and scales.
    """

    __slots__ = ("scale",)
    exact = True
    shape_rule = "input (…), target (…) -> ()"
    shape_fix = "give the sentence's own target, unpadded; F.squeeze a column (T, 1)"
    any_shape = True
    retains = Retain(inputs=True)
    scale: float
    pair: ClassVar[Pair]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        offsets = xs[0].starts
        kernels.pair_loss(cls.pair, xs[0].flat, xs[1].flat, offsets, y.flat)
        arrays.scale_segments(y.flat, *cls._scales(batch), y.flat)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        x, t = batch.input(0), batch.input(1)
        offsets = x.starts
        each = batch.xp.empty(dy.flat.shape, batch.dtype)
        arrays.scale_segments(dy.flat, *cls._scales(batch), each)
        for of_target, dx in enumerate(dxs):
            if dx is not None:
                kernels.pair_loss_backward(
                    cls.pair, bool(of_target), each, x.flat, t.flat, offsets, dx.flat
                )

    @classmethod
    def _scales(cls, batch: Batch) -> tuple[Array, Array]:
        return batch.array("scale", batch.dtype), np.arange(len(batch.nodes) + 1)


class SquaredError(ElementwiseLoss):
    """f = (x - t)²."""

    __slots__ = ()
    pair = kernels.squared_error


class KlDivergence(ElementwiseLoss):
    """f = t (log t - x), 0 where t = 0; x holds log-probabilities."""

    __slots__ = ()
    pair = kernels.divergence


class LogKlDivergence(ElementwiseLoss):
    """f = exp(t) (t - x); both hold log-probabilities."""

    __slots__ = ()
    pair = kernels.log_divergence


class BinaryCrossEntropy(ElementwiseLoss):
    """f = log(1 + exp(x)) - t x, the cross-entropy of t and σ(x), in nats."""

    __slots__ = ()
    pair = kernels.logistic


class PoissonLoss(ElementwiseLoss):
    """f = exp(x) - t x; x holds logarithms of rates."""

    __slots__ = ()
    pair = kernels.poisson


class PoissonRateLoss(ElementwiseLoss):
    """f = x - t log(x + 1e-8); x holds rates."""

    __slots__ = ()
    pair = kernels.poisson_rate


class SoftMargin(ElementwiseLoss):
    """f = log(1 + exp(-t x)); t is 1 or -1."""

    __slots__ = ()
    pair = kernels.soft_margin


def nll_loss(
    log_probabilities: Node, targets: Any, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """Negative log-likelihood of one sentence's classes, as `torch.nn.functional.nll_loss`.

    `cross_entropy` is this after `log_softmax`, without storing either.

    Args:
        log_probabilities: (T, V), or (V,) for one prediction.
        targets:           T ids below V; or one id.
        ignore_index:      tokens with this target do not count.
        reduction:         "mean" over the tokens that count (0 if none does), or "sum".

    Raises:
        ShapeError:      numbers of rows and targets differ.
        VocabularyError: a target is outside 0 … V - 1 and is not `ignore_index`.
        ValueError:      unknown reduction.
    """
    what = "nll_loss"
    ids, weights, rule = class_targets(what, log_probabilities, targets, ignore_index, reduction)
    return NllLoss(log_probabilities, ids=ids, weights=weights, rule=rule)


def mse_loss(x: Node, target: Any, reduction: str = "mean") -> Node:
    """Squared error of one sentence, as `torch.nn.functional.mse_loss`.

    Args:
        x:         any shape.
        target:    a node or an array of that shape.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction.
    """
    return _pair_loss("mse_loss", SquaredError, x, target, reduction)


def kl_div(x: Node, target: Any, reduction: str = "mean", log_target: bool = False) -> Node:
    """Kullback-Leibler divergence Σ t (log t - x), as `torch.nn.functional.kl_div`.

    Args:
        x:          log-probabilities, of any shape.
        target:     probabilities; a node or an array of that shape.
        reduction:  "batchmean" over tokens, the divergence proper; "mean" over all elements, as
            PyTorch's default; or "sum". 0 if there are none.
        log_target: whether the target holds log-probabilities too.

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction, or log_target is neither True nor False.
    """
    node_type = LogKlDivergence if switch("kl_div", "log_target", log_target) else KlDivergence
    return _pair_loss("kl_div", node_type, x, target, reduction, ("mean", "batchmean", "sum"))


def binary_cross_entropy_with_logits(x: Node, target: Any, reduction: str = "mean") -> Node:
    """Cross-entropy between probabilities `target` and σ(x), as PyTorch's function of this name.

    Args:
        x:         logits, of any shape.
        target:    probabilities, often 0 or 1; a node or an array of that shape.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction.
    """
    what = "binary_cross_entropy_with_logits"
    return _pair_loss(what, BinaryCrossEntropy, x, target, reduction)


def poisson_nll_loss(x: Node, target: Any, log_input: bool = True, reduction: str = "mean") -> Node:
    """Negative log-likelihood of counts, as `torch.nn.functional.poisson_nll_loss`.

    Each element gives exp(x) - t x, or x - t log(x + 1e-8) without `log_input`. The term log t!,
    which does not depend on x, is left out, as in PyTorch with full=False, its default.

    Args:
        x:         logarithms of the expected counts, of any shape; these counts themselves without
            `log_input`.
        target:    counts; a node or an array of that shape.
        log_input: whether x holds logarithms.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction, or log_input is neither True nor False.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     F.poisson_nll_loss(F.input(graph, [0.0, 0.0]), [1.0, 3.0]).item()
        1.0
    """
    what = "poisson_nll_loss"
    node_type = PoissonLoss if switch(what, "log_input", log_input) else PoissonRateLoss
    return _pair_loss(what, node_type, x, target, reduction)


def soft_margin_loss(x: Node, target: Any, reduction: str = "mean") -> Node:
    """Logistic loss of two classes, 1 and -1, as `torch.nn.functional.soft_margin_loss`.

    Each element gives log(1 + exp(-t x)), which neither overflows nor loses a small loss.

    Args:
        x:         scores, of any shape.
        target:    1 or -1 for each; a node or an array of that shape.
        reduction: "mean" over all elements (0 if there are none), or "sum".

    Raises:
        ShapeError: the shapes differ.
        DtypeError: the target is not numeric.
        ValueError: unknown reduction.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     round(F.soft_margin_loss(F.input(graph, [1.0, -1.0]), [1, 1]).item(), 4)
        0.8133
    """
    return _pair_loss("soft_margin_loss", SoftMargin, x, target, reduction)


def _pair_loss(
    what: str, node_type: type[ElementwiseLoss], x: Node, target: Any, reduction: str,
    known: tuple[str, ...] = ("mean", "sum"),
) -> Node:  # fmt: skip
    x = node_of(what, x)
    check_reduction(what, reduction, known)
    counts = {"mean": x.rows * x.width, "batchmean": x.rows, "sum": 1}
    target = target if isinstance(target, Node) else input(x.graph, target)
    return node_type(x, target, scale=1 / max(counts[reduction], 1))
