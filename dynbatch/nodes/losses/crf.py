"""Linear-chain conditional random field of one sentence: its loss, and the best tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dynbatch.backend import Array
from dynbatch.kernels.losses import crf as kernels
from dynbatch.nodes.arguments import check_parameter, node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.losses.targets import TargetRule, class_targets
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class ChainBase(Operation):
    """Base of `Crf` and `Viterbi`: scores of transitions, of the first tag and of the last."""

    __slots__ = ("end", "start", "transitions")
    exact = True
    static: ClassVar[tuple[str, ...]] = ("transitions", "start", "end")
    shape_fix: ClassVar[dict[str, str]] = {
        "x": "F.unsqueeze(x, 0) makes a vector one token",
        "": "project to as many tags as the transitions have, or make these for {x[1]}",
    }
    transitions: Parameter
    start: Parameter
    end: Parameter

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """A sum of scores and a function of it for each token, tag and tag before it."""
        tags = sizes.batch.first.start.size
        return Flops(elementwise=2 * tags * sizes.inputs[0])

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        return cls.flops(sizes)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """Scratch for values that only backward reads, when no backward follows."""
        return 0 if batch.keeps else sum([n * width for n, width in cls.saved(batch).values()])

    @classmethod
    def chain(cls, batch: Batch) -> kernels.Chain:
        node = batch.first
        return kernels.Chain(node.transitions.value, node.start.value, node.end.value)

    @classmethod
    def chain_gradients(cls, batch: Batch) -> kernels.ChainGradients:
        """The buffers to add to; None for a frozen parameter."""
        node, gradients = batch.first, batch.parameter_gradients()
        parameters = (node.transitions, node.start, node.end)
        return kernels.ChainGradients(
            *[None if p.frozen else gradients.buffer(p) for p in parameters]
        )


class Crf(ChainBase):
    """loss = log Σ_y exp(score(y)) - score(tags), over all K^T tag sequences y.

        score(y) = start[y_0] + Σ_t x[t, y_t] + Σ_t transitions[y_t, y_t+1] + end[y_T-1]

    Batches with:  every other one of the same parameters, whatever the lengths.
    Keeps:  one number for each token and tag, and one for each token.
    Cost:  see `kernels.losses.crf`; time is proportional to N · K².
    """

    __slots__ = ("ids",)
    shape_rule = "x (T, K), ids (T,), transitions (K, K), start (K,), end (K,) -> ()"
    retains = Retain(inputs=True)
    given_attributes = ("ids",)
    ids: Array

    def given(self, array: Array) -> tuple[Array]:
        rule = TargetRule("crf", self.transitions.shape[0], None, "sum")
        return (rule.weighted(array, self.graph.dtype)[0],)

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        tokens = sum(batch.sizes("ids"))
        return {"log_sums": (tokens, batch.first.transitions.shape[0]), "shifts": (tokens, 1)}

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return kernels.workspace_backward(batch.spec, *cls.saved(batch)["log_sums"])

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        if batch.keeps:
            log_sums, shifts = batch.saved["log_sums"], batch.saved["shifts"]
        else:
            size = x.values.size
            log_sums, shifts = batch.scratch[:size].reshape(x.values.shape), batch.scratch[size:]
        kernels.crf(
            x.values, cls.chain(batch), batch.concat("ids"), x.offsets,
            log_sums, shifts.reshape(-1), y.flat,
        )  # fmt: skip

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        x = batch.input(0)
        dx = batch.xp.empty(x.values.shape, batch.dtype) if dxs[0] is None else dxs[0].values
        kernels.crf_backward(
            x.values, cls.chain(batch), batch.concat("ids"), x.offsets, batch.saved["log_sums"],
            batch.saved["shifts"].reshape(-1), dy.flat, dx, cls.chain_gradients(batch),
            batch.scratch,
        )  # fmt: skip


class Viterbi(ChainBase):
    """y_t = the tag of token t in the sequence of the highest score, as a float. No gradient.

    Batches with:  every other one of the same parameters, whatever the lengths.
    """

    __slots__ = ()
    shape_rule = "x (T, K), transitions (K, K), start (K,), end (K,) -> (T, 1)"
    differentiable = False

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        tags: int = batch.first.transitions.shape[0]
        return batch.rows * tags

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        (x,) = xs
        kernels.viterbi(x.values, cls.chain(batch), x.offsets, y.flat, batch.scratch)


def emissions_of(function: str, emissions: Node, *parameters: Parameter) -> Node:
    """The emissions as a node; of its graph's dtype the parameters must be.

    Raises:
        DtypeError: a parameter is none, or not of the graph's dtype.
    """
    emissions = node_of(function, emissions)
    for parameter in parameters:
        check_parameter(function, parameter, emissions.graph)
    return emissions


def crf(
    emissions: Node, tags: Any, transitions: Parameter, start: Parameter, end: Parameter
) -> Node:
    """Negative log-likelihood of one sentence's tags in a linear-chain CRF, in nats, summed.

    Args:
        emissions:   (T, K) scores of each token's tags.
        tags:        T numbers below K.
        transitions: (K, K) scores of a tag (row) before another (column); -inf forbids it.
        start, end:  (K,) scores of the first tag and of the last.

    Returns:
        log Σ_y exp(score(y)) - score(tags), a scalar; 0 where T is 0.

    Raises:
        ShapeError:      shapes do not fit, or the numbers of tokens and tags differ.
        VocabularyError: a tag is outside 0 … K - 1.
        DtypeError:      a parameter is none, or is not of the graph's dtype.

    Source: Lafferty, McCallum & Pereira 2001, ICML; as a layer on a bi-LSTM Huang et al. 2015,
        arXiv:1508.01991.
    """
    emissions = emissions_of("crf", emissions, transitions, start, end)
    ids, _, _ = class_targets("crf", emissions, tags, None, "sum")
    return Crf(emissions, transitions=transitions, start=start, end=end, ids=ids)


def viterbi(emissions: Node, transitions: Parameter, start: Parameter, end: Parameter) -> Node:
    """The tag sequence (T, 1) that a linear-chain CRF scores highest, as floats.

    Args: as in `crf`.

    Raises:
        ShapeError: shapes do not fit.
        DtypeError: an argument is not a parameter, or not of the graph's dtype.
    """
    emissions = emissions_of("viterbi", emissions, transitions, start, end)
    return Viterbi(emissions, transitions=transitions, start=start, end=end)
