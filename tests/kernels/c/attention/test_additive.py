"""Additive attention in C against NumPy: of many queries a sentence, and of one."""

from typing import Any

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.attention import additive
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.c.attention import additive as c_additive
from dynbatch.kernels.runtime import parallel
from tests.attention_reference import pack
from tests.kernels.c.compare import Scratch, assert_same

Lengths = list[tuple[int, int]]
MANY = [(3, 5), (1, 1), (0, 4), (2, 0), (4, 17), (0, 0), (5, 2), (1, 33)]
SINGLE = [(1, keys) for keys in (5, 1, 30, 2, 17, 9)]
WIDTHS = [(1, 1), (19, 70), (64, 16)]
ROOM = 1 << 14

of_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
of_widths = pytest.mark.parametrize("widths", WIDTHS)


def inputs(lengths: Lengths, widths: tuple[int, int], dtype: Any) -> tuple[PackedAttention, Array]:
    """Packed rows, whose queries are columns of a wider array, and the vector."""
    (queries, keys), (width, value_width) = zip(*lengths, strict=True), widths
    (q, query_offsets), (k, key_offsets) = pack(queries, width, 1), pack(keys, width, 2)
    v, _ = pack(keys, value_width, 3)
    wide = np.full((q.shape[0], width + 3), np.nan, dtype)
    wide[:, 2 : 2 + width] = q
    packed = PackedAttention(
        wide[:, 2 : 2 + width], k.astype(dtype), v.astype(dtype), query_offsets, key_offsets
    )
    vector = np.random.default_rng(4).standard_normal(width) / np.sqrt(width)
    return packed, vector.astype(dtype)


def results(lengths: Lengths, packed: PackedAttention) -> tuple[Array, Array]:
    pairs = sum([queries * keys for queries, keys in lengths])
    values = packed.values
    return np.empty((len(packed.queries), values.shape[1]), values.dtype), np.empty(
        pairs, values.dtype
    )


def slopes_of(out: Array) -> Array:
    return np.random.default_rng(5).standard_normal(out.shape).astype(out.dtype)


def wanted(packed: PackedAttention, accumulate: bool = False) -> AttentionGradients:
    return AttentionGradients(*[np.full(x.shape, 2, x.dtype) for x in packed[:3]], accumulate)


def masks_of(lengths: Lengths) -> list[Mask]:
    rng = np.random.default_rng(6)
    masks = [NO_MASK, Mask(0, 0), Mask(1, 2)]
    for queries, keys in lengths[len(masks) :]:
        shape = (queries, keys) if len(masks) % 2 else (keys,)
        masks.append(Mask(left=9, visible=rng.random(shape) < 0.5))
    return masks


@of_dtypes
@of_widths
@pytest.mark.parametrize(("lengths", "is_masked"), [(MANY, False), (MANY, True), (SINGLE, False)])
def test_c_gives_what_numpy_gives(
    dtype: Any, widths: tuple[int, int], lengths: Lengths, is_masked: bool
) -> None:
    packed, vector = inputs(lengths, widths, dtype)
    masks = masks_of(lengths) if is_masked else [NO_MASK] * len(lengths)
    out, weights = results(lengths, packed)
    scratch = Scratch(ROOM, dtype)
    assert_same(additive.additive_attention, packed, vector, masks, out, weights, scratch)
    additive.additive_attention(packed, vector, masks, out, weights, np.empty(ROOM, dtype))
    for accumulate in (False, True):
        given = (weights, slopes_of(out), wanted(packed, accumulate))
        assert_same(additive.additive_attention_backward, packed, vector, *given, scratch)


@pytest.mark.parametrize("number", range(3))
def test_a_gradient_that_nobody_wants_changes_no_other(number: int) -> None:
    packed, vector = inputs(MANY, (19, 70), np.float32)
    out, weights = results(MANY, packed)
    masks, room = [NO_MASK] * len(MANY), np.empty(ROOM, np.float32)
    additive.additive_attention(packed, vector, masks, out, weights, room)
    every = wanted(packed)
    some = wanted(packed)._replace(**{AttentionGradients._fields[number]: None})
    for gradients in (every, some):
        additive.additive_attention_backward(
            packed, vector, weights, slopes_of(out), gradients, room
        )
    for mine, expected in zip(some[:3], every[:3], strict=True):
        assert mine is None or (mine == expected).all()


def test_a_sentence_has_the_same_bits_alone_and_in_company_on_any_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_additive, "WORTH_A_THREAD", 1)
    packed, vector = inputs(MANY, (256, 256), np.float32)
    out, weights = results(MANY, packed)
    dout, masks, room = slopes_of(out), masks_of(MANY), np.empty(1 << 16, np.float32)

    def run(number: int | None) -> list[Array]:
        if number is None:
            part, mask, dy = packed, masks, dout
        else:
            rows, keys = [
                slice(*x[number : number + 2]) for x in (packed.query_offsets, packed.key_offsets)
            ]
            of_one = [packed.queries[rows], packed.keys[keys], packed.values[keys]]
            ends = [np.array([0, rows.stop - rows.start]), np.array([0, keys.stop - keys.start])]
            part, mask, dy = PackedAttention(*of_one, *ends), masks[number : number + 1], dout[rows]
        y, w = np.empty_like(dy), np.empty(weights.size, np.float32)
        additive.additive_attention(part, vector, mask, y, w, room)
        gradients = wanted(part)
        dvector = additive.additive_attention_backward(part, vector, w, dy, gradients, room)
        return [y, *gradients[:3], dvector]

    whole = run(None)
    before = parallel.num_threads()
    try:
        for threads in (1, 3):
            parallel.set_num_threads(threads)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(whole, run(None), strict=True))
    finally:
        parallel.set_num_threads(before)
    for number in range(len(MANY)):
        rows, keys = [
            slice(*x[number : number + 2]) for x in (packed.query_offsets, packed.key_offsets)
        ]
        alone = run(number)
        for mine, expected, part in zip(
            alone[:4], whole[:4], (rows, rows, keys, keys), strict=True
        ):
            assert mine.tobytes() == expected[part].tobytes()


def test_scores_that_are_no_numbers_give_what_numpy_gives() -> None:
    packed, vector = inputs(SINGLE, (19, 5), np.float32)
    packed.keys[3, 2], packed.keys[7, 3], packed.queries[4, 1] = np.nan, np.inf, -np.inf
    packed.values[-1] = np.inf
    arguments = (*results(SINGLE, packed), Scratch(ROOM, np.float32))
    assert_same(additive.additive_attention, packed, vector, [NO_MASK] * len(SINGLE), *arguments)
