"""A `Comparison` as a picture: bytes over a training step, and bytes against batch size."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
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
STYLES: dict[str, dict[str, object]] = {
    PADDED_RANDOM: {"color": "#D55E00", "linewidth": 2.5},
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


def merged(curves: Mapping[str, Mapping[Any, float]]) -> dict[str, str]:
    """Labels of the curves to draw, by name: of those that are one line to the eye, at the same
    points and within a hundredth of each other, the first is drawn, and its label names all."""
    labels: dict[str, str] = {}
    for name, curve in curves.items():
        same = next((first for first in labels if _is_one_line(curves[first], curve)), None)
        if same is None:
            labels[name] = name
        else:
            labels[same] += f"\n= {name}"
    return labels


def _is_one_line(a: Mapping[Any, float], b: Mapping[Any, float]) -> bool:
    return a.keys() == b.keys() and all([isclose(a[x], b[x], rel_tol=0.01) for x in a])


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
    curves = {
        name: {k / max(1, len(stages) - 1): size / MB for k, (_, size) in enumerate(stages)}
        for name in STYLES
        if name in forms and (stages := forms[name].stages)
    }
    for name, label in merged(curves).items():
        points = curves[name]
        axes.step(list(points), list(points.values()), where="mid", label=label, **STYLES[name])
    axes.set_xlabel("forward, then backward (share of the step's stages)")
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    _finish(axes)
    axes.legend(frameon=False, loc="upper left")
    axes.set_ylim(top=1.5 * axes.get_ylim()[1])


def _against_batch_size(by_batch_size: Mapping[str, Mapping[int, int]], axes: Axes) -> None:
    curves = {
        name: {size: peak / MB for size, peak in curve.items()}
        for name, curve in by_batch_size.items()
    }
    drawn = merged(curves)
    ticks = list(dict.fromkeys([size for curve in curves.values() for size in curve]))
    labelled: list[float] = []  # ends of curves with a number beside them
    for name, label in drawn.items():
        axes.plot(
            list(curves[name]), list(curves[name].values()), marker=_MARKERS[name], label=label,
            **STYLES[name],
        )  # fmt: skip
    for name in dict.fromkeys([UNPADDED_RANDOM, *drawn]):  # the form that the picture is about
        last, height = max(curves[name].items())
        if all([abs(height - other) > 0.05 * height for other in labelled]):
            labelled.append(height)
            axes.annotate(
                f"{height:,.0f}", (last, height), (8, 0), textcoords="offset points",
                color=STYLES[name]["color"], va="center",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
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
