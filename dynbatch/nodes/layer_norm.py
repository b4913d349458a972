"""Layer normalisation and RMS normalisation over the features of every token."""

from __future__ import annotations

from typing import ClassVar

from dynbatch.kernels import layer_norm as kernels
from dynbatch.nodes.arguments import check_parameter
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.parameter import Array, Parameter
from dynbatch.ragged import Ragged


class FeatureNormalization(Operation):
    """Base of both: rows over their deviation, or their root mean square, then weight and bias.

    Shape:  x (T, D) or (D,), weight (D,), bias (D,) -> y of x's shape.
    Batches with:  every other one of its type, weight, bias and eps: all tokens at once.
    """

    __slots__ = ()
    retains = Retain(inputs=True)
    rowwise = True
    inplace_backward = True
    statistics: ClassVar[tuple[str, ...]]
    weight: Parameter | None
    bias: Parameter | None
    eps: float

    def infer_shape(self, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if not shape:
            self.refuse(
                "a scalar has no features",
                "features are normalised: x is (T, D) or (D,)",
                "F.stack scalars to a vector first",
            )
        for parameter in (self.weight, self.bias):
            if parameter is not None and parameter.shape != shape[-1:]:
                self.refuse(
                    f"{parameter!r} for {shape[-1]} features",
                    "weight and bias have x.shape[-1] elements",
                    f"make it of {shape[-1]} elements",
                )
        return shape

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(cls.statistics, (batch.rows, 1))

    @staticmethod
    def columns(saved: dict[str, Array]) -> tuple[Array | None, Array]:
        """Mean and 1/√(variance + eps) of each row; RMS normalisation has no mean."""
        mean = saved.get("mean")
        return None if mean is None else mean[:, 0], saved["rstd"][:, 0]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node, x = batch.first, xs[0].values
        saved = batch.saved
        if not batch.keeps:
            saved = {name: batch.xp.empty((x.shape[0], 1), x.dtype) for name in cls.statistics}
        weight = None if node.weight is None else node.weight.value
        bias = None if node.bias is None else node.bias.value
        kernels.layer_norm(x, weight, bias, node.eps, y.values, *cls.columns(saved))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, x, (dx,) = batch.first, batch.input(0).values, dxs
        mean, rstd = cls.columns(batch.saved)
        if node.parameters():
            gradients = batch.parameter_gradients()
            pair = [None if p is None or p.frozen else p for p in (node.weight, node.bias)]
            # One parameter may be both: each of its buffers is written before the next is given.
            turns = [pair] if pair[0] is not pair[1] else [[pair[0], None], [None, pair[1]]]
            for turn in turns:
                targets = [None if p is None else gradients.buffer(p) for p in turn]
                kernels.layer_norm_parameters(dy.values, x, mean, rstd, *targets)
        if dx is not None:  # last: it may be written over dy
            weight = None if node.weight is None else node.weight.value
            kernels.layer_norm_backward(dy.values, x, weight, mean, rstd, dx.values)


class LayerNormalization(FeatureNormalization):
    """y = (x - mean) / √(variance + eps) ⊙ weight + bias, mean and variance over the features.

    Keeps:  two numbers a token (mean and 1/√(variance + eps)) beside x.
    """

    stream_name = "LayerNorm"
    __slots__ = ("bias", "eps", "weight")
    static = ("weight", "bias", "eps")
    statistics = ("mean", "rstd")


class RmsNormalization(FeatureNormalization):
    """y = x / √(mean(x ⊙ x) + eps) ⊙ weight, the mean over the features.

    Keeps:  one number a token (1/√(mean(x ⊙ x) + eps)) beside x.
    """

    __slots__ = ("eps", "weight")
    static = ("weight", "eps")
    statistics = ("rstd",)
    bias = None


def layer_norm(
    x: Node, weight: Parameter | None = None, bias: Parameter | None = None, eps: float = 1e-5
) -> Node:
    """Layer normalisation over the features, as `torch.nn.functional.layer_norm`.

    Args:
        x:      (T, D) or (D,).
        weight: (D,), or None for ones.
        bias:   (D,), or None for zeros.
        eps:    added to the variance.

    Raises:
        ShapeError: x is a scalar, or weight or bias has another number of elements.
        DtypeError: a parameter's dtype is not the graph's.

    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    for parameter in (weight, bias):
        if parameter is not None:
            check_parameter("layer_norm", parameter, x.graph)
    return LayerNormalization(x, weight=weight, bias=bias, eps=float(eps))


def rms_norm(x: Node, weight: Parameter | None = None, eps: float = 1e-6) -> Node:
    """Root mean square normalisation over the features, x / √(mean(x ⊙ x) + eps) ⊙ weight.

    As `torch.nn.functional.rms_norm`, whose own eps is the smallest step of the dtype above 1.

    Args:
        x:      (T, D) or (D,).
        weight: (D,), or None for ones.
        eps:    added to the mean square.

    Raises:
        ShapeError: x is a scalar, or weight has another number of elements.
        DtypeError: the weight's dtype is not the graph's.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    if weight is not None:
        check_parameter("rms_norm", weight, x.graph)
    return RmsNormalization(x, weight=weight, eps=float(eps))
