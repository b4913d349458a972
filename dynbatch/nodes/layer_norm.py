"""Layer normalisation and RMS normalisation over the features of every token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from dynbatch.arguments import size
from dynbatch.backend import Array
from dynbatch.kernels import layer_norm as kernels
from dynbatch.nodes.arguments import check_parameter
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class FeatureNormalization(Operation):
    """Base of both: rows over their deviation, or their root mean square, then weight and bias.

    Batches with:  every other one of its type, weight, bias and eps: all tokens at once.
    Keeps:  y, which a linear map behind it keeps anyway, and one number a token. Backward makes
        n = (y - bias) / weight of it. Features whose weight is 0, or whose bias is beyond
        `kernels.MAX_SHIFT` weights, do not give n back: theirs is kept beside the arena.

    Source: `memory_efficient` of FusedLayerNorm in NVIDIA's Apex, which clamps small weights.
    """

    __slots__ = ()
    shape_fix: ClassVar[dict[str, str]] = {
        "x": "F.stack scalars to a vector first",
        "": "make it of {x[-1]} elements",
    }
    retains = Retain(output=True)
    rowwise = True
    is_one_kernel = True
    inplace_backward = True
    adds_gradient = True
    statistics: ClassVar[tuple[str, ...]]
    weight: Parameter | None
    bias: Parameter | None
    eps: float
    heads: int = 1

    @classmethod
    def keeps_input(cls, batch: Batch) -> bool:
        """Whether backward reads a copy of x instead of making its normals from y.

        It does on a GPU, where the host does not know the weights, and in a scan, whose steps share
        one batch.
        """
        return batch.device.is_cuda or batch.cache is not None

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        node = batch.first
        lost = kernels.lost_columns(*cls.weight_and_bias(node), node.width // node.heads)
        return cls.is_built_in and not lost.size

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        numbers = (batch.rows, batch.first.heads)
        if not cls.keeps_input(batch):
            return {"rstd": numbers}
        return dict.fromkeys(cls.statistics, numbers) | {"input": (batch.rows, batch.first.width)}

    @classmethod
    def narrow_saved(cls, batch: Batch) -> Collection[str]:
        return [name for name in cls.saved(batch) if name == "input"]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        node, x = batch.first, by_heads(batch, xs[0].values)
        saved = cls.saved_by_heads(batch) if batch.keeps else {}
        numbers = {
            name: saved[name][:, 0] if name in saved else batch.xp.empty(x.shape[0], x.dtype)
            for name in cls.statistics
        }
        mean, rstd = numbers.get("mean"), numbers["rstd"]
        weight, bias = cls.weight_and_bias(node)
        kept = saved.get("input")
        kernels.layer_norm(x, weight, bias, node.eps, by_heads(batch, y.values), mean, rstd, kept)
        if batch.keeps and kept is None:
            lost = kernels.lost_columns(weight, bias, x.shape[1])
            if lost.size:
                centre = None if mean is None else mean[:, None]
                columns = kernels.Normals(x.take(lost, axis=1), centre, rstd[:, None])
                batch.memo["lost"] = lost, columns.part(slice(None))

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        node, (dx,), saved = batch.first, dxs, cls.saved_by_heads(batch)
        dy_rows = by_heads(batch, dy.values)
        weight, bias = cls.weight_and_bias(node)
        if "input" in saved:
            normals = kernels.Normals(saved["input"], saved.get("mean"), saved["rstd"])
        else:
            y = by_heads(batch, batch.result().values)
            normals = kernels.normals_of_output(y, weight, bias, batch.memo.get("lost"))
        if node.parameters():
            gradients = batch.parameter_gradients()
            pair = [None if p is None or p.frozen else p for p in (node.weight, node.bias)]
            # One parameter may be both: each of its buffers is written before the next is given.
            turns = [pair] if pair[0] is not pair[1] else [[pair[0], None], [None, pair[1]]]
            for turn in turns:
                dweight, dbias = [None if p is None else gradients.buffer(p) for p in turn]
                later = gradients.later
                kernels.layer_norm_parameters(dy_rows, normals, dweight, dbias, later)
        if dx is not None:  # last: it may be written over dy
            rstd, is_centred = saved["rstd"][:, 0], "mean" in cls.statistics
            out = by_heads(batch, dx.values)
            kernels.layer_norm_backward(dy_rows, normals, weight, rstd, is_centred, out, batch.adds)

    @classmethod
    def saved_by_heads(cls, batch: Batch) -> Mapping[str, Array]:
        """The arrays of `saved`, with a row for each head of a token."""
        if batch.first.heads == 1:
            return batch.saved
        return {name: by_heads(batch, array) for name, array in batch.saved.items()}

    @staticmethod
    def weight_and_bias(node: FeatureNormalization) -> tuple[Array | None, Array | None]:
        weight, bias = node.weight, node.bias
        return None if weight is None else weight.value, None if bias is None else bias.value


def by_heads(batch: Batch, rows: Array) -> Array:
    """A view of contiguous rows (N, heads · d) as (N · heads, d)."""
    heads: int = batch.first.heads
    return rows if heads == 1 else rows.reshape(len(rows) * heads, rows.shape[1] // heads)


class LayerNormalization(FeatureNormalization):
    """y = (x - mean) / √(variance + eps) ⊙ weight + bias, mean and variance over the features."""

    stream_name = "LayerNorm"
    __slots__ = ("bias", "eps", "weight")
    static = ("weight", "bias", "eps")
    shape_rule = "x (…, D), [weight (D,)], [bias (D,)] -> (…, D)"
    statistics = ("mean", "rstd")


class RmsNormalization(FeatureNormalization):
    """y = x / √(mean(x ⊙ x) + eps) ⊙ weight, the mean over the features of each head."""

    __slots__ = ("eps", "heads", "weight")
    static = ("weight", "eps", "heads")
    shape_rule = "x (…, heads · d), [weight (d,)] -> (…, heads · d)"
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


def rms_norm(x: Node, weight: Parameter | None = None, eps: float = 1e-6, heads: int = 1) -> Node:
    """Root mean square normalisation over the features, x / √(mean(x ⊙ x) + eps) ⊙ weight.

    As `torch.nn.functional.rms_norm`, whose own eps is the smallest step of the dtype above 1.

    Args:
        x:      (T, D) or (D,).
        weight: (D,), or None for ones.
        eps:    added to the mean square.
        heads:  the features are split into so many heads, each normalised by itself; the weight
            (D / heads,) is that of all. Attention's queries and keys are normalised so.

    Raises:
        ShapeError: x is a scalar, heads does not divide its features, or weight has another number
            of elements.
        DtypeError: the weight's dtype is not the graph's.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467; of heads: Dehghani et al. 2023,
        arXiv:2302.05442, section 2.
    """
    if weight is not None:
        check_parameter("rms_norm", weight, x.graph)
    heads = size("rms_norm", "heads", heads)
    return RmsNormalization(x, weight=weight, eps=float(eps), heads=heads)
