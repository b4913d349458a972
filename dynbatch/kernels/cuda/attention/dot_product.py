"""Launches of `dot_product.cu`: dot-product attention of sentences' queries over their own keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, ArraySpec
from dynbatch.cupy_types import device_address
from dynbatch.kernels.attention.addresses import PagedRows
from dynbatch.kernels.attention.bias import FeatureRows, PairStarts, distances_of
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, Mask
from dynbatch.kernels.attention.packed import (
    AttentionGradients,
    PackedAttention,
    pair_offsets,
)
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.addresses import row_address
from dynbatch.kernels.cuda.runtime.launch import Dimensions
from dynbatch.kernels.cuda.runtime.matrices import row_stride
from dynbatch.kernels.cuda.runtime.packing import Argument
from dynbatch.kernels.cuda.runtime.queue import launch, queue
from dynbatch.kernels.cuda.runtime.source import CudaSource
from dynbatch.kernels.cuda.segment import reduce_segments
from dynbatch.kernels.dropout import bounds_and_scales
from dynbatch.kernels.runtime.precision import FULL, of_products
from dynbatch.ragged import offsets_of

TILE = 32  # queries, or keys, of a block, as in dot_product.cu
THREADS = 256
ALONE_THREADS = 512  # where all sentences have one query
UNBOUNDED = 1 << 30  # a distance that no sentence reaches, in 32 bits
# As in dot_product_mma.cuh.
MMA_TILE, MMA_THREADS, MMA_COLUMNS = 64, 128, 128

TENSOR_CORES = False
"""Whether tensor cores do attention (`dot_product_mma.cu`) where a graph rounds factors.

Off, since no card has run them. They take float32 heads of 16, 32, … 128 features at multiples of
16 bytes, and batches in which a sentence has several queries: only then are factors rounded of one
that has a single query.
"""


class KernelForm(NamedTuple):
    """The kernels to run: plain, extended by softcap, bias and dropout, or on tensor cores.

    kind: behind the kernels' names. side: queries, or keys, of a tile. block: threads. extension,
    starts, last: their last parameters; backward has no `starts`.
    """

    kind: str
    side: int
    block: tuple[int]
    extension: tuple[Argument, ...] = ()
    starts: Array | None = None
    last: tuple[Argument, ...] = ()

    @property
    def forward(self) -> tuple[Argument, ...]:
        return (*self.extension, self.starts, *self.last) if self.kind else ()

    @property
    def backward(self) -> tuple[Argument, ...]:
        return (*self.extension, *self.last)


def workspace_backward(
    spec: ArraySpec, query_lengths: Sequence[int], key_lengths: Sequence[int], scoring: Scoring
) -> int:
    """Elements of scratch of `dot_attention_backward`.

    Σ_j p_ij dp_ij of each query and head, and what each tile of queries adds to a bias's gradient.
    """
    means, bias = sum(query_lengths) * scoring.heads, scoring.bias
    if bias is None or bias.rule is None or isinstance(bias.rule, PairStarts):
        return means
    tiles = sum([-(-count // TILE) for count in query_lengths])
    return means + tiles * scoring.heads * int(bias.numbers.shape[0])


def dot_attention(
    packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array, scratch: Array
) -> None:
    attend(packed, scoring, out, log_sums)


def dot_attention_of_pages(
    queries: Array, query_offsets: Array, paged: PagedRows, scoring: Scoring, out: Array
) -> None:
    """`dot_attention` over keys and values where they lie in pages, in one launch.

    The layers of a model that score alike share the tables.
    """
    table, of_scoring = paged.table, scoring.key
    key = of_scoring, paged.widths
    known = table.calls.get(key)
    if known is None:
        known = _call_of_pages(queries, query_offsets, paged, scoring)
        if of_scoring is not None:
            table.calls[key] = known
    name, blocks, block, of_pages, of_sentences = known
    if paged.is_short:
        queue().kernels(out.dtype).add(over_short_pages())
    args = (queries, *of_pages, *paged.offsets, out, *of_sentences)
    launch(out, name, (blocks, scoring.heads), block, args)


def _call_of_pages(
    queries: Array, query_offsets: Array, paged: PagedRows, scoring: Scoring
) -> tuple[str, int, Dimensions, Sequence[Argument], Sequence[Argument]]:
    """Kernel, blocks, block, and the arguments that follow from pages and from sentences."""
    table = paged.table
    log_rows = table.rows.bit_length() - 1
    assert table.rows == 1 << log_rows, f"pages of {table.rows} rows, which are no power of two"
    keys, values = [queries[:0].reshape(0, width) for width in paged.widths]  # for their widths
    packed = PackedAttention(queries, keys, values, query_offsets, offsets_of(table.after))
    form = _form(packed, scoring)
    tiles, blocks = tile_table(np.diff(query_offsets), form.side)
    of_pages = table.bases, table.firsts, table.gaps, log_rows
    strides = queries.shape[1], *paged.widths
    of_sentences = tiles, *_tables(packed, scoring), *strides, *form.forward
    name = f"dot_attention_of_{'short_' if paged.is_short else ''}pages{form.kind}"
    return name, blocks, form.block, of_pages, of_sentences


@cache
def over_short_pages() -> CudaSource:
    """The kernels over pages for numbers that are kept as bfloat16, of the same text."""
    kernels = source.read("dot_product.cu")
    text = f"#define KEPT_AS Bfloat16\n{kernels.text}".replace("_of_pages", "_of_short_pages")
    signatures = {k: of for k, of in source.signatures(text).items() if "_of_short_pages" in k}
    return CudaSource(f"{kernels.name} over short pages", text, signatures)


def dot_attention_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, out: Array | None, dout: Array,
    wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """Gradients of `dot_attention`: a launch for queries, and one for keys and values.

    For sentences with one query the first launch does everything, unless heads share keys or
    scoring is extended. The gradient of a bias takes a launch and, of a table, a sum.
    """
    attend_backward(packed, scoring, log_sums, out, dout, wanted, scratch)


def attend(packed: PackedAttention, scoring: Scoring, out: Array, log_sums: Array | None) -> None:
    """`dot_attention`; without masks every query sees every key."""
    form = _form(packed, scoring, out)
    tiles, blocks = tile_table(np.diff(packed.query_offsets), form.side)
    addresses, strides = _row_addresses(packed[:3])
    args = (*addresses, out, log_sums, tiles, *_tables(packed, scoring), *strides, *form.forward)
    launch(out, f"dot_attention{form.kind}", (blocks, scoring.heads), form.block, args)


def attend_backward(
    packed: PackedAttention, scoring: Scoring, log_sums: Array, out: Array | None, dout: Array,
    wanted: AttentionGradients, scratch: Array | None,
) -> None:  # fmt: skip
    """`dot_attention_backward`; without masks every query sees every key.

    Args:
        scratch: `workspace_backward` elements, or None where every sentence has one query and head.
    """
    queries, keys = np.diff(packed.query_offsets), np.diff(packed.key_offsets)
    means = None if scratch is None else scratch[: log_sums.size]
    addresses, strides = _row_addresses((*packed[:3], *wanted[:3]))
    arrays = (*addresses[:3], log_sums, dout, means)
    form = _form(packed, scoring, out, dout, wanted.queries, wanted.keys, wanted.values)
    tiles, blocks = tile_table(queries, form.side)
    tables = (*_tables(packed, scoring), *strides)
    of_keys = (*addresses[4:], wanted.accumulate)
    alone = not form.kind and scoring.shared == 1
    of_form: tuple[Argument, ...] = () if form.kind else of_keys if alone else (None, None, False)
    args: tuple[Argument, ...] = (
        *arrays[:4], out, *arrays[4:], addresses[3], *of_form, tiles, *tables, *form.backward,
    )  # fmt: skip
    launch(dout, f"dot_attention_backward{form.kind}", (blocks, scoring.heads), form.block, args)
    if scratch is not None and not (wanted.bias is None and wanted.pairs is None):
        of_bias = (*tables, *form.extension)
        rest = scratch[log_sums.size :]
        _backward_of_bias(packed, scoring, dout, arrays, of_bias, wanted, rest)
    rest = np.where(queries == 1, 0, keys) if alone else keys
    if rest.any() and not (wanted.keys is None and wanted.values is None):
        tiles, blocks = tile_table(rest, form.side)
        grid, block = (blocks, scoring.heads // scoring.shared), (min(THREADS, *form.block),)
        args = (*arrays, *of_keys, tiles, *tables, *form.backward)
        launch(dout, f"dot_attention_backward_keys{form.kind}", grid, block, args)


def _backward_of_bias(
    packed: PackedAttention, scoring: Scoring, dout: Array, arrays: Sequence[Argument],
    tables: Sequence[Argument], wanted: AttentionGradients, scratch: Array,
) -> None:  # fmt: skip
    """The gradient of a bias: of its table, summed over tiles, or of sentences' matrices."""
    heads, bias = scoring.heads, scoring.bias
    tiles, blocks = tile_table(np.diff(packed.query_offsets), TILE)
    if bias is not None and isinstance(bias.rule, PairStarts):
        by_head = bool((np.diff(bias.rule.starts) > np.diff(pair_offsets(packed))).all())
        grid = blocks, heads if by_head else 1
        args = (*arrays, wanted.pairs, tiles, *tables)
        launch(dout, "dot_attention_backward_pairs", grid, (THREADS,), args)
    if wanted.bias is None:
        return
    rows, columns = wanted.bias.shape
    copies = blocks * heads // columns
    sums = scratch[: copies * wanted.bias.size].reshape(copies, wanted.bias.size)
    args = (*arrays, sums, rows, tiles, *tables)
    launch(dout, "dot_attention_backward_bias", (blocks, heads), (THREADS,), args)
    total = wanted.bias.reshape(1, wanted.bias.size)
    reduce_segments(np.add, sums, np.array([0, copies]), total, 0)


def tile_table(lengths: Array, side: int) -> tuple[Array | None, int]:
    """First tile of each sentence (None if each has one), and the number of tiles."""
    counts = -(-lengths // side)
    if (counts == 1).all():
        return None, counts.size
    ends = np.cumsum(counts)
    return ends - counts, int(ends[-1])


def mask_tables(masks: Sequence[Mask]) -> tuple[Array | None, Array | None]:
    """The tables that `mask_of` in attention.cuh reads: (K, 4) numbers, and all masks' flags."""
    if all([mask is NO_MASK for mask in masks]):
        return None, None
    table = np.empty((len(masks), 4), np.int64)
    visible: list[Array] = []
    start = 0
    for row, (left, right, seen) in zip(table, masks, strict=True):
        row[:2] = min(left, UNBOUNDED), min(right, UNBOUNDED)
        if seen is None or not seen.size:
            row[2:] = -1, 0
            continue
        row[2:] = start, seen.shape[1] if seen.ndim == 2 else 0
        visible.append(seen.reshape(-1))
        start += seen.size
    return table, np.concatenate(visible) if visible else None


def _row_addresses(
    arrays: Sequence[Array | None],
) -> tuple[Sequence[int | None], Sequence[int]]:
    """Addresses and strides of rows that may be parts of wider ones; see `row_address`."""
    addresses, strides = zip(*map(row_address, arrays), strict=True)
    return addresses, strides


def _tables(packed: PackedAttention, scoring: Scoring) -> tuple[Argument, ...]:
    count = packed.query_offsets.size - 1
    tables = (
        packed.query_offsets, packed.key_offsets, np.broadcast_to(scoring.scales, count),
        *mask_tables([scoring.mask(k) for k in range(len(scoring.masks))]),
    )  # fmt: skip
    heads, shared = scoring.heads, scoring.shared
    widths = [x.shape[1] // (heads // shared) for x in (packed.keys, packed.values)]
    return (*tables, count, heads, shared, *widths)


def _form(packed: PackedAttention, scoring: Scoring, *others: Array | None) -> KernelForm:
    """The form of the kernels for these matrices; `others` are those that are no inputs."""
    is_lone = bool((np.diff(packed.query_offsets) == 1).all())
    matrices = [x for x in (*packed[:3], *others) if x is not None]
    if others and not is_lone and fits_tensor_cores(matrices, packed, scoring):
        extension = _extension(packed, scoring)
        last = (of_products() == "bfloat16",)
        return KernelForm("_mma", MMA_TILE, (MMA_THREADS,), extension, scoring.starts, last)
    if scoring.is_extended:
        extension = _extension(packed, scoring)
        return KernelForm("_extended", TILE, (THREADS,), extension, scoring.starts)
    return KernelForm("", TILE, (ALONE_THREADS if is_lone else THREADS,))


def fits_tensor_cores(matrices: Sequence[Array], packed: PackedAttention, scoring: Scoring) -> bool:
    """Whether tensor cores multiply, with factors rounded as the run asks for."""
    if not TENSOR_CORES or of_products() == FULL or packed.queries.dtype != np.float32:
        return False
    widths = [x.shape[1] * scoring.shared // scoring.heads for x in (packed.keys, packed.values)]
    suits = all([0 < width <= MMA_COLUMNS and width % 16 == 0 for width in widths])
    rows = [(device_address(x), row_stride(x) * x.itemsize) for x in matrices]
    return suits and all([address % 16 == stride % 16 == 0 for address, stride in rows])


def _extension(packed: PackedAttention, scoring: Scoring) -> tuple[Argument, ...]:
    """The arguments of kernels for a bias, dropout and a softcap."""
    bias, streams = scoring.bias, scoring.streams
    rule = None if bias is None else bias.rule
    numbers = None if bias is None else bias.numbers
    columns = 0 if bias is None else bias.numbers.shape[-1]
    table: tuple[Argument, ...] = (numbers, None, 0, columns, None, None, 0)
    if isinstance(rule, PairStarts):
        table = (numbers, None, 0, 0, rule.starts, None, 0)
    elif isinstance(rule, FeatureRows):
        features = np.concatenate([array.reshape(-1) for array in rule.arrays])
        of_pairs = pair_offsets(packed), features.view(np.uint8), features.itemsize
        table = (numbers, None, 0, columns, *of_pairs)
    elif rule is not None:
        ends = scoring.ends(np.diff(packed.query_offsets))
        distances = distances_of(ends, np.diff(packed.key_offsets))
        rows = rule.rows(np.arange(distances.start, distances.stop))
        table = (numbers, rows, -distances.start, columns, None, None, 0)
    bounds, scales = bounds_and_scales(np.array([scoring.p]), packed.queries.dtype)
    return (*table, streams, int(bounds[0]), float(scales[0]), scoring.softcap)
