"""Cross-entropy of choices among a sentence's own rows: heads of words, ends of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.backend import Array
from dynbatch.kernels.losses import pointer as kernels
from dynbatch.kernels.segment import sum_segments
from dynbatch.nodes.arguments import nodes_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.losses.targets import TargetRule, class_targets
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.ragged import Ragged


class PointerLoss(Operation):
    """loss = Σ_i weight_i · (log Σ_j exp(q_i · k_j) - q_i · k_target_i), in nats.

    Batches with:  every other one of the same D, whatever the lengths. A `cross_entropy` of q kᵀ
        has as many classes as the sentence has keys, and batches with the same number only.
    Keeps:  a probability for each pair of a query and a key.
    """

    __slots__ = ("ids", "rule", "weights")
    exact = True
    shape_rule = "q (T, D), k (S, D), ids (T,) -> ()"
    shape_fix = "project both to one width; F.unsqueeze(x, 0) makes a row of a vector"
    retains = Retain(inputs=True)
    given_attributes = ("ids", "weights")
    multiplies_values = True
    ids: Array
    weights: Array
    rule: TargetRule

    def given(self, array: Array) -> tuple[Array, Array]:
        return self.rule.weighted(array, self.graph.dtype)

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        (ids, weights), (_, _, keys) = values, rows
        self.rule.check(ids, weights != 0, keys)

    def check_shape(self, *shapes: Shape) -> None:
        q, k = shapes
        if q[0] and not k[0]:
            self.refuse(
                f"{q[0]} queries and no keys",
                "a choice needs something to choose from",
                "skip such a sentence, or F.concat a row that means no choice (dim=0)",
            )

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        queries, keys = cls._lengths(batch)
        return {"probabilities": (sum([a * b for a, b in zip(queries, keys, strict=True)]), 1)}

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        pairs, _ = cls.saved(sizes.batch)["probabilities"]
        return Flops(2 * pairs * sizes.batch.first.inputs[0].width, pairs)

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        products, pairs = cls.flops(sizes)
        return Flops(products * sum(wanted), pairs)

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """One element for each query's loss; the probabilities too, if no backward reads them."""
        pairs, _ = cls.saved(batch)["probabilities"]
        return sum(cls._lengths(batch)[0]) + (0 if batch.keeps else pairs)

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        return kernels.workspace_backward(batch.spec, *cls._lengths(batch))

    @staticmethod
    def _lengths(batch: Batch) -> tuple[list[int], list[int]]:
        inputs = [node.inputs for node in batch.nodes]
        return [q.rows for q, _ in inputs], [k.rows for _, k in inputs]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        packed = cls._packed(*xs)
        queries = xs[0].values.shape[0]
        losses, scratch = batch.scratch[:queries].reshape(-1, 1), batch.scratch[queries:]
        probabilities = batch.saved["probabilities"].reshape(-1) if batch.keeps else scratch
        ids, weights = batch.concat("ids"), batch.concat("weights")
        kernels.pointer_loss(packed, ids, weights, probabilities, losses[:, 0])
        sum_segments(losses, xs[0].offsets, y.values)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        packed = cls._packed(batch.input(0), batch.input(1))
        dq, dk = [None if dx is None else dx.values for dx in dxs]
        kernels.pointer_loss_backward(
            packed, batch.concat("ids"), batch.concat("weights"),
            batch.saved["probabilities"].reshape(-1), dy.flat,
            kernels.ChoiceGradients(dq, dk), batch.scratch,
        )  # fmt: skip

    @staticmethod
    def _packed(q: Ragged, k: Ragged) -> kernels.Choices:
        return kernels.Choices(q.values, k.values, q.offsets, k.offsets)


def pointer_loss(
    queries: Node, keys: Node, targets: Any, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """Cross-entropy of one sentence's choices among its own keys, with scores q_i · k_j, in nats.

    It is `cross_entropy(queries @ transpose(keys), targets)`, but batches at any lengths.

    Args:
        queries:      (T_q, D).
        keys:         (T_k, D).
        targets:      T_q numbers of keys.
        ignore_index: queries with this target do not count.
        reduction:    "mean" over the queries that count (0 if none does), or "sum".

    Raises:
        ShapeError:      shapes do not fit, there is no key for a query, or the numbers of queries
                         and targets differ.
        VocabularyError: a target is outside 0 … T_k - 1 and is not `ignore_index`.
        ValueError:      unknown reduction.

    Source: Vinyals, Fortunato & Jaitly 2015, arXiv:1506.03134 (pointer networks).
    """
    queries, keys = nodes_of("pointer_loss", queries, keys)
    ids, weights, rule = class_targets(
        "pointer_loss", queries, targets, ignore_index, reduction, are_rows=True
    )
    return PointerLoss(queries, keys, ids=ids, weights=weights, rule=rule)
