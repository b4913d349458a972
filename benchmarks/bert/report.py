"""The table of what fits, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bert.estimates import GIB, StepMemory
from dynbatch.atomic import replacing
from dynbatch.padding.picture import merged, new_figure, require_format

Fits = Mapping[str, Mapping[int, int]]
"""For each form, the most sentences by the longest length."""

FULL, MIXED, PADDED, TORCH, PUBLISHED = (
    "dynbatch, all full", "dynbatch, lengths as SQuAD's", "padded, lengths as SQuAD's",
    "PyTorch, padded or full", "published for 12 GB",
)  # fmt: skip

# Adam, on a Titan X. Source: github.com/google-research/bert, README, "Out-of-memory issues".
PUBLISHED_FITS = {64: 64, 128: 32, 256: 16, 320: 14, 384: 12, 512: 6}

# Okabe & Ito 2008, as in the other pictures.
STYLES: dict[str, dict[str, Any]] = {
    MIXED: {"color": "#0072B2", "marker": "D", "linewidth": 2.5},
    FULL: {"color": "#009E73", "marker": "o", "linewidth": 2},
    PADDED: {"color": "#000000", "marker": "x", "linewidth": 1.6, "linestyle": "--"},
    TORCH: {"color": "#D55E00", "marker": "s", "linewidth": 2},
    PUBLISHED: {"color": "#999999", "marker": "v", "linewidth": 1.2, "linestyle": ":"},
}


def step_lines(name: str, found: StepMemory, others: Mapping[str, int | None]) -> list[str]:
    """One step's memory, what its arena holds, and bytes of other forms where they are known."""
    parts = f"parameters, gradients and Adam {found.state / GIB:.2f}, arena {found.arena / GIB:.2f}"
    held = [f"{kind} {size / GIB:.2f}" for kind, size in found.by_type.items() if size > GIB / 100]
    beside = [
        f"{other} {size / GIB:.2f} GiB, {size / found.total:.2f} times as much"
        for other, size in others.items()
        if size is not None
    ]
    return [
        f"{name}: {found.tokens:,} tokens, {found.gib:.2f} GiB",
        f"  {parts}, index tables {found.tables / GIB:.4f}; peak in {found.peak_stage}",
        f"  arena: {', '.join(held)}",
        f"  beside it: {'; '.join(beside)}",
    ]


def measured_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """A step that ran: what was planned and what was taken."""
    exact = "as estimated" if found["arena_bytes"] == found["estimated_arena_bytes"] else "NOT so"
    growth = found["process_bytes"] / found["estimated_bytes"] - 1
    return [
        f"{name}, run: arena {found['arena_bytes'] / GIB:.3f} GiB, {exact}; the process grew by "
        f"{found['process_bytes'] / GIB:.2f} GiB, {growth:+.1%} of the estimate; "
        f"{found['seconds']:.0f} s, loss {found['loss']:.3f}"
    ]


def fit_lines(fits: Fits, limit_gib: float) -> list[str]:
    """A row for each form, a column for each length."""
    lengths = list(fits[FULL])
    head = f"most sentences in {limit_gib:g} GiB"
    lines = [f"{head:30}" + "".join([f"{length:>7}" for length in lengths])]
    for name, row in fits.items():
        lines.append(f"{name:30}" + "".join([f"{row.get(length, ''):>7}" for length in lengths]))
    return lines


def draw(fits: Fits, limit_gib: float, path: Path) -> None:
    """Most sentences against the longest length, both logarithmic.

    Raises:
        DataError:   the file's ending is of no picture.
        ImportError: matplotlib is not installed.
    """
    require_format(path)
    figure = new_figure(7.2, 4.6)
    axes: Any = figure.subplots()
    for name, label in merged(fits).items():
        row = fits[name]
        axes.plot(list(row), list(row.values()), label=label, **STYLES[name])
        last = max(row)
        axes.annotate(
            f"{row[last]}", (last, row[last]), (8, 0), textcoords="offset points", va="center",
            color=STYLES[name]["color"],
        )  # fmt: skip
    lengths: Sequence[int] = list(fits[FULL])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlim(right=1.2 * max(lengths))
    axes.set_xlabel("longest sentence, tokens")
    axes.set_ylabel("sentences of a mini-batch")
    axes.set_title(f"BERT-base, a training step with Adam in {limit_gib:g} GiB", fontsize=11)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=110)
