"""A `Comparison` as a picture: bytes over a training step, and bytes against batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynbatch.atomic import replacing
from dynbatch.errors import DataError
from dynbatch.padding.forms import (
    MB,
    PADDED_BUCKETED,
    PADDED_BY_TOKENS,
    PADDED_RANDOM,
    UNPADDED_RANDOM,
    Form,
)

# Okabe & Ito 2008: told apart by colour-blind readers, and in grey by their line styles.
# The first line is wide, as the second often lies on it: at the peak both are padded alike.
STYLES: dict[str, dict[str, object]] = {
    PADDED_RANDOM: {"color": "#D55E00", "linewidth": 4},
    PADDED_BUCKETED: {"color": "#000000", "linewidth": 1.6, "linestyle": "--"},
    PADDED_BY_TOKENS: {"color": "#009E73", "linewidth": 2, "linestyle": ":"},
    UNPADDED_RANDOM: {"color": "#0072B2", "linewidth": 2.5},
}
Axes = Any
"""A `matplotlib.axes.Axes`."""

FORMATS = (".png", ".svg", ".pdf")
_MARKERS = {PADDED_RANDOM: "s", PADDED_BUCKETED: "o", PADDED_BY_TOKENS: "^", UNPADDED_RANDOM: "D"}


def require_format(path: Path) -> None:
    """Raise a DataError if the file's ending is none of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise DataError(
            f"{path}: the ending tells no format.\n  rule: {', '.join(FORMATS)}\n"
            f"  fix:  {path.with_name(path.name + '.png')}"
        )


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure` of so many inches, which needs no display.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a picture needs matplotlib, which is not installed.\n"
            "  fix:  pip install 'dynbatch[plots]', or leave the picture out"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw(
    forms: Mapping[str, Form],
    by_batch_size: Mapping[str, Mapping[int, int]],
    batch_size: int,
    path: Path,
) -> None:
    """Write the picture in the format of the file's ending.

    Raises:
        DataError:   the ending is none of `FORMATS`.
        ImportError: matplotlib is not installed.
        OSError:     the file cannot be written.
    """
    require_format(path)
    has_curves = any(by_batch_size.values())
    figure = new_figure(10 if has_curves else 5.4, 4)
    axes = figure.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
    axes[0].set_title(f"memory over one training step, {batch_size} sentences", fontsize=11)
    _over_a_step(forms, axes[0])
    if has_curves:
        _against_batch_size(by_batch_size, axes[1])
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=110)


def _over_a_step(forms: Mapping[str, Form], axes: Axes) -> None:
    for name, style in STYLES.items():
        heights = [size / MB for _, size in forms[name].stages]
        axes.step(_shares(len(heights)), heights, where="mid", label=name, **style)
    axes.set_xlabel("forward, then backward (share of the step's stages)")
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    _finish(axes)
    axes.legend(frameon=False, loc="upper left")
    axes.set_ylim(top=1.5 * axes.get_ylim()[1])


def _against_batch_size(curves: Mapping[str, Mapping[int, int]], axes: Axes) -> None:
    ticks: dict[int, None] = {}
    labelled: list[float] = []  # ends of curves with a number beside them
    for name, curve in curves.items():
        style, sizes = STYLES[name], list(curve)
        ticks.update(dict.fromkeys(sizes))
        heights = [size / MB for size in curve.values()]
        axes.plot(sizes, heights, marker=_MARKERS[name], label=name, **style)
    for name in dict.fromkeys([UNPADDED_RANDOM, *curves]):  # the form that the picture is about
        sizes, heights = list(curves[name]), [size / MB for size in curves[name].values()]
        if all([abs(heights[-1] - other) > 0.05 * heights[-1] for other in labelled]):
            labelled.append(heights[-1])
            at, colour = (sizes[-1], heights[-1]), STYLES[name]["color"]
            axes.annotate(
                f"{heights[-1]:,.0f}", at, (8, 0), textcoords="offset points", color=colour,
                va="center",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlim(right=1.25 * max(ticks))
    axes.set_title("peak of an epoch against batch size", fontsize=11)
    axes.set_xlabel("sentences of a mini-batch")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_ylabel("activations, gradients, workspace (MB)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _shares(count: int) -> Sequence[float]:
    return [k / max(1, count - 1) for k in range(count)]
