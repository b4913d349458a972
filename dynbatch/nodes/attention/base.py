"""The base of all attention: shape rules, masks, and steps of a scan.

Inside a scan one node stands for every sentence, and all steps share one memory: backward then adds
to the gradients named in `accumulates`, with scratch that all steps share, in an `AttentionCache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DtypeError, GraphError
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.attention.steps import StepScores
from dynbatch.nodes.batch import Batch, ScanCache
from dynbatch.nodes.flops import BatchSizes, Flops
from dynbatch.nodes.node import Shape
from dynbatch.nodes.operation import ELEMENT, Operation, Retain
from dynbatch.ragged import Ragged


class AttentionCache(ScanCache):
    """State that attention to one memory keeps from step to step of a scan.

    Attributes:
        scratch: of backward, which all steps share.
        vectors: what steps left of the gradient of additive attention's vector, on a GPU.
    """

    __slots__ = ("scratch", "vectors")

    def __init__(self, sentences: int) -> None:
        super().__init__(sentences)
        self.scratch: Array | None = None
        self.vectors: Array | None = None

    def scratch_of(self, elements: int, batch: Batch) -> Array:
        """Scratch memory of `elements` elements."""
        if self.scratch is None or self.scratch.size < elements:
            self.scratch = batch.xp.empty(elements, batch.dtype)
        return self.scratch[:elements]


class AttentionBase(Operation):
    """Base of attention nodes. `vector` is additive attention's parameter, else None."""

    __slots__ = ("mask",)
    shape_fix: ClassVar[dict[str, str]] = {
        "heads · d": "choose a number of heads that divides the features",
        "kv_heads · d": "choose kv_heads among the divisors of heads",
        "kv_heads · e": "choose kv_heads among the divisors of heads",
        "d": "project them to one width, or use F.general_attention",
        "S": "take keys and values from the same positions of one sentence",
        "": "give keys and values one row for each position",
    }
    retains = Retain(inputs=True)
    accumulates = (1, 2)
    given_attributes: ClassVar[tuple[str, ...]] = ("mask",)
    cache_type = AttentionCache
    multiplies_values = True
    vector: Any = None
    mask: Mask

    def check_shape(self, *shapes: Shape) -> None:
        pairs = (self.inputs[0].rows, self.inputs[1].rows)
        seen = pairs if self.mask.visible is None else self.mask.visible.shape
        if seen not in (pairs, pairs[1:]):
            self.refuse(
                f"mask {seen} for {pairs[0]} queries, {pairs[1]} keys",
                "mask.shape is (T_q, T_k) or (T_k,)",
                "give this sentence's own mask, unpadded",
            )
        if self.mask.left < 0:
            self.refuse(
                f"window {self.mask.left}",
                "0 <= window; with 0 a query sees its own position only",
                "give the number of tokens to see on each side",
            )

    def given(self, array: Array) -> tuple[Any, ...]:
        if array.dtype != np.bool_:
            raise not_boolean("attention", array)
        return (self.mask._replace(visible=array),)

    @classmethod
    def operations(cls, batch: Batch) -> int:
        first = batch.first
        a_pair = ELEMENT + first.inputs[0].width + first.width
        operations: int = a_pair * cls._pairs(batch)
        return operations

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """Scores and sums of values, two products, for each pair; a mask spares none."""
        pairs, first = cls._pairs(sizes.batch), sizes.batch.first
        widths = first.inputs[0].width + first.width
        return Flops(2 * pairs * widths, pairs * cls.flops_a_pair(first))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """Scores that are computed again are not counted."""
        pairs, first, (query, key, *rest) = cls._pairs(sizes.batch), sizes.batch.first, wanted
        value, bias = rest[0], any(rest[1:])
        of_scores = query or key or bias or bool(first.parameters())
        products = first.inputs[0].width * (query + key) + first.width * (of_scores + value)
        return Flops(2 * pairs * products, pairs * cls.flops_a_pair(first))

    @classmethod
    def flops_a_pair(cls, first: Any) -> int:
        """Operations besides products for a query and a key."""
        return 1

    @classmethod
    def _pairs(cls, batch: Batch) -> int:
        pairs: int | None = batch.memo.get("pairs")
        if pairs is None:
            pairs = sum([q * k for q, k in zip(*cls.lengths(batch), strict=True)])
            batch.memo["pairs"] = pairs
        return pairs

    @staticmethod
    def cache(batch: Batch) -> AttentionCache | None:
        """The state of a scan, which it keeps from step to step; None outside of one."""
        assert batch.cache is None or isinstance(batch.cache, AttentionCache)
        return batch.cache

    @classmethod
    def masks(cls, batch: Batch) -> list[Mask]:
        """The mask of each sentence."""
        masks = batch.column("mask")
        if batch.cache is not None and masks[0].visible is not None:
            raise GraphError(
                f"{cls.__name__} in a cell: a mask belongs to one sentence, a cell to all.\n"
                "  fix:  take the hidden rows out of the memory before the scan"
            )
        return masks

    @classmethod
    def lengths(cls, batch: Batch) -> tuple[list[int], list[int]]:
        """T_q and T_k of each sentence."""
        return batch.input_rows(0), batch.input_rows(1)

    @classmethod
    def retained(cls, batch: Batch) -> list[Ragged]:
        """Queries, keys and values, and matrices of biases, which backward reads."""
        return [batch.input(k) for k in range(len(batch.inputs))]

    @classmethod
    def packed(cls, xs: Sequence[Ragged]) -> PackedAttention:
        """The inputs as the kernels take them."""
        q, k, v, *_ = xs
        return PackedAttention(q.values, k.values, v.values, q.offsets, k.offsets)

    @classmethod
    def wanted(cls, batch: Batch, dxs: Sequence[Ragged | None]) -> AttentionGradients:
        """The gradients to compute, as the kernels take them."""
        dq, dk, dv = [None if dx is None else dx.values for dx in dxs[:3]]
        pairs = None if len(dxs) < 4 or (dx := dxs[3]) is None else dx.flat
        return AttentionGradients(dq, dk, dv, batch.accumulate, pairs=pairs)

    def step_scores(self, memories: Sequence[int | None]) -> StepScores | None:
        are_memories = memories[0] is None and None not in memories[1:]  # all but the query
        return self.unmasked_scores() if are_memories and self.mask is NO_MASK else None

    def unmasked_scores(self) -> StepScores | None:
        """`step_scores` of a query that sees all keys."""
        return None

    @classmethod
    def scratch(cls, batch: Batch) -> Array:
        """Scratch for backward; the steps of a scan share it."""
        cache = cls.cache(batch)
        if cache is None:
            return batch.scratch
        return cache.scratch_of(cls.workspace_backward(batch), batch)


def mask_of(what: str, causal: bool, window: int | None, mask: Any) -> Mask:
    """The mask of a sentence's queries, from the arguments of the function `what`."""
    if not causal and window is None and mask is None:
        return NO_MASK
    if mask is not None:
        mask = np.array(np.asarray(mask))
        if mask.dtype != np.bool_:
            raise not_boolean(what, mask)
    if window is not None and not isinstance(window, (int, np.integer)):
        raise DtypeError.at_caller(
            f"{what}: window={window!r}; a whole number of tokens is expected.\n"
            "  fix:  round it, or leave it out to see every distance"
        )
    reach = UNBOUNDED if window is None else int(window)
    return Mask(reach, 0 if causal else reach, mask)


def not_boolean(what: str, mask: Array) -> DtypeError:
    """The error for a mask of numbers."""
    return DtypeError.at_caller(
        f"{what}: the mask is {mask.dtype} {mask.shape}; booleans are expected.\n"
        "  rule: True lets a query see a key, False hides it\n"
        "  fix:  pass `mask != 0`, or `mask > -inf` for an added one"
    )
