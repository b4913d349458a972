"""Cross-entropy of one sentence, fused with the projection that makes its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import ArgumentError
from dynbatch.kernels import arrays
from dynbatch.kernels.losses import cross_entropy as kernels
from dynbatch.kernels.segment import sum_segments
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.folded import Folded
from dynbatch.nodes.linear import LinearMap
from dynbatch.nodes.losses.targets import TargetRule, class_targets, distributions
from dynbatch.nodes.node import ROWS, Node
from dynbatch.nodes.operation import ELEMENT, INDEX_BYTES, Operation, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

folds = ContextVar("folds", default=True)
"""Whether losses fold projections in."""


class CrossEntropyBase(Operation):
    """Base of both forms: packs targets and token weights."""

    __slots__ = ()
    exact = True
    static: ClassVar[tuple[str, ...]] = ("smoothing", "by_class")
    retains = Retain(inputs=True)
    given_attributes = ("targets", "weights")
    targets: Array  # ids (T,) by class, else distributions (T, V)
    weights: Array
    rule: TargetRule
    smoothing: float
    by_class: bool

    def given(self, array: Array) -> tuple[Array, Array]:
        made = self.rule.weighted if self.by_class else self.rule.weighted_rows
        return made(array, self.graph.dtype)

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        tokens = sum(batch.sizes("weights"))
        return INDEX_BYTES * (len(batch.nodes) + 1 + 2 * tokens)  # ids, and weights

    @classmethod
    def packed_targets(cls, batch: Batch) -> kernels.Targets:
        """The targets of all sentences; distributions stay separate arrays."""
        weights, smoothing = batch.concat("weights"), batch.first.smoothing
        if batch.first.by_class:
            return kernels.Targets(batch.concat("targets"), weights, smoothing)
        rows = kernels.Distributions([node.targets for node in batch.nodes])
        return kernels.Targets(np.zeros(weights.size, np.int64), weights, smoothing, rows)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """Two elements for each token: its loss and its scale."""
        return 2 * sum(batch.sizes("weights"))

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return cls.workspace(batch)

    @classmethod
    def losses(cls, batch: Batch, tokens: int) -> Array:
        """The end of scratch: each token's loss (N, 1)."""
        return batch.scratch[batch.scratch.size - tokens :].reshape(tokens, 1)

    @classmethod
    def scale(cls, batch: Batch, dy: Ragged, offsets: Array) -> Array:
        """Each token's weight times its sentence's gradient, before `losses` in scratch."""
        weights = batch.concat("weights")
        last = batch.scratch.size - weights.size
        scale = batch.scratch[last - weights.size : last]
        kernels.token_scales(dy.flat, weights, offsets, scale)
        return scale


class LinearCrossEntropy(CrossEntropyBase, Folded):
    """loss = Σ_t weight_t · (logsumexp(W h_t + b) - (W h_t + b)[target_t]), in nats.

    Of distributions p: Σ_t weight_t · Σ_v p_tv (logsumexp(z_t) - z_tv), z_t = W h_t + b.

    It replaces a `CrossEntropy` of W h + b in runs where nothing else reads these logits.

    Batches with:  every other one of the same W, b, smoothing and kind of targets: all tokens of
        all sentences.
    Cost:  logits in chunks (see `kernels.losses.cross_entropy`). Where the loss reaches the end
        through means and sums only, the gradient is made in forward, and logits are computed once.
    """

    __slots__ = ("bias", "by_class", "rule", "smoothing", "targets", "weight", "weights")
    static = ("weight", "bias", "smoothing", "by_class")
    shape_rule = "h (T, D)|(D,), weight (V, D), [bias (V,)] -> ()"
    fuses_backward = True
    weight: Parameter
    bias: Parameter | None

    @classmethod
    def operations(cls, batch: Batch) -> int:
        weight = batch.first.weight  # its logits are as many as a linear layer writes
        a_row: int = weight.size + ELEMENT * len(weight.value)
        return sum(batch.input_rows(0)) * a_row

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        node, logits = sizes.batch.first, cls._logits(sizes)
        return Flops(2 * logits * node.weight.shape[1], logits * (1 + (node.bias is not None)))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """Logits that are computed again are not counted."""
        node, logits = sizes.batch.first, cls._logits(sizes)
        count = wanted[0] + (not node.weight.frozen)
        has_bias = node.bias is not None and not node.bias.frozen
        return Flops(2 * logits * node.weight.shape[1] * count, logits * (1 + has_bias))

    @staticmethod
    def _logits(sizes: BatchSizes) -> int:
        classes, width = sizes.batch.first.weight.shape
        logits: int = sizes.inputs[0] // width * classes
        return logits

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        of_tokens = super().workspace(batch)
        vocabulary: int = batch.first.weight.shape[0]
        return kernels.workspace(batch.spec, of_tokens // 2, vocabulary) + of_tokens

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        sum_segments(cls._run(batch, xs[0], None), xs[0].offsets, y.values)

    @classmethod
    def forward_backward(
        cls, batch: Batch, y: Ragged, xs: Sequence[Ragged], dy: Ragged, dxs: Sequence[Ragged | None]
    ) -> None:
        """Loss and gradients in one pass; dy is already known."""
        losses = cls._run(batch, xs[0], cls._wanted(batch, xs[0], dy, dxs[0]))
        sum_segments(losses, xs[0].offsets, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        h = batch.input(0)
        cls._run(batch, h, cls._wanted(batch, h, dy, dxs[0]))

    @classmethod
    def _wanted(
        cls, batch: Batch, h: Ragged, dy: Ragged, dh: Ragged | None
    ) -> kernels.LossGradients:
        node, gradients = batch.first, batch.parameter_gradients()
        scale = cls.scale(batch, dy, h.offsets)
        wanted = kernels.LossGradients(scale, None if dh is None else dh.values)
        if not node.weight.frozen:
            wanted.weight = gradients.buffer(node.weight)
        if node.bias is not None and not node.bias.frozen:
            wanted.bias = gradients.buffer(node.bias)
        return wanted

    @classmethod
    def _run(cls, batch: Batch, h: Ragged, wanted: kernels.LossGradients | None) -> Array:
        """The losses of all tokens (N, 1), and the gradients that are wanted."""
        node, targets = batch.first, cls.packed_targets(batch)
        bias = None if node.bias is None else node.bias.value
        losses = cls.losses(batch, h.values.shape[0])
        kernels.linear_cross_entropy(
            h.values, node.weight.value, bias, targets, losses[:, 0], batch.scratch, wanted
        )
        return losses


class CrossEntropy(CrossEntropyBase):
    """The cross-entropy of logits (T, V), by `LinearCrossEntropy`'s formula.

    Batches with:  every other one of the same V, smoothing and form of targets.
    """

    __slots__ = ("by_class", "rule", "smoothing", "targets", "weights")
    shape_rule = "x (T, V)|(V,) -> ()"

    def folded(self) -> Operation:
        """The loss on what the projection reads; its logits are never stored."""
        (logits,) = self.inputs
        assert isinstance(logits, LinearMap)
        return LinearCrossEntropy(
            self, *logits.inputs, weight=logits.weight, bias=logits.bias, targets=self.targets,
            weights=self.weights, rule=self.rule, smoothing=self.smoothing, by_class=self.by_class,
        )  # fmt: skip

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        losses = cls.losses(batch, x.values.shape[0])
        kernels.softmax_loss(x.values, None, cls.packed_targets(batch), losses[:, 0])
        sum_segments(losses, x.offsets, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        (dx,) = dxs
        if dx is not None:
            x = batch.input(0)
            arrays.copy(x.values, dx.values)
            losses, scale = cls.losses(batch, x.values.shape[0]), cls.scale(batch, dy, x.offsets)
            kernels.softmax_loss(dx.values, None, cls.packed_targets(batch), losses[:, 0], scale)


def cross_entropy(
    logits: Node,
    targets: Any,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:
    """Cross-entropy of one sentence in nats, as `torch.nn.functional.cross_entropy`.

    When `logits` comes straight from `linear`, the projection is folded in and its logits are never
    stored, unless they are kept or read otherwise: then they are, as any value.

    Args:
        logits:          (T, V), or (V,) for one prediction.
        targets:         T ids below V; or one id. Or floats in the shape of `logits`: a
            probability for each class, whose rows need not sum to 1. They stay on the host as the
            caller gave them, and come to a GPU as the run needs them; no gradient is made for them.
        ignore_index:    tokens with this target do not count, whatever their logits are.
        label_smoothing: ε in [0, 1); of probabilities p it makes (1 - ε) p + ε/V.
        reduction:       "mean" over the tokens that count (0 if none does), or "sum".

    Raises:
        ShapeError:      numbers of logits rows and targets differ.
        VocabularyError: a target is outside 0 … V - 1 and is not `ignore_index`.
        NumericError:    a probability is NaN or infinite.
        ArgumentError:   another reduction or smoothing; a probability below 0, or an `ignore_index`
            beside probabilities.

    Where a class has probability 0, its logit may be -inf; PyTorch gives NaN there.
    """
    if not 0 <= label_smoothing < 1:
        raise ArgumentError.at_caller(
            f"cross_entropy: label_smoothing is {label_smoothing}.\n  rule: 0 <= ε < 1\n"
            "  fix:  0.1 is common; 0 switches it off"
        )
    dense = distributions(logits, targets, ignore_index, reduction)
    checked = dense or class_targets("cross_entropy", logits, targets, ignore_index, reduction)
    targets, weights, rule = checked
    smoothing, by_class, graph = float(label_smoothing), dense is None, logits.graph
    sig = graph.signatures.get((CrossEntropy, (smoothing, by_class), 1, logits.width))
    if sig is None:
        loss = CrossEntropy(
            logits, targets=targets, weights=weights, rule=rule, smoothing=smoothing,
            by_class=by_class,
        )  # fmt: skip
    else:
        loss = CrossEntropy.__new__(CrossEntropy)
        loss.targets, loss.weights, loss.rule = checked
        loss.smoothing, loss.by_class = smoothing, by_class
        loss.complete_as((logits,), graph, 0, 1, 1, ROWS, sig)
    if type(logits) is LinearMap and folds.get():
        graph.absorb(logits, loss)
    return loss


@contextmanager
def stored_logits() -> Iterator[None]:
    """Inside, `cross_entropy` folds no projection in: logits of the whole mini-batch are stored.

    Use it to measure what folding saves; values and gradients are the same.
    """
    token = folds.set(False)
    try:
        yield
    finally:
        folds.reset(token)
