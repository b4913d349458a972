"""`memory()`: the bytes of a step, stage by stage, below its prediction and its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from dynbatch.arguments import integer, refused, shown
from dynbatch.batcher.planning.memory_use import EARLIER, MemoryUse
from dynbatch.batcher.planning.stages import EARLY_BACKWARD, StageKind
from dynbatch.errors import GraphError
from dynbatch.graph import Graph
from dynbatch.memory.sizes import parse_bytes
from dynbatch.pictures import palette
from dynbatch.pictures.axes import Panel, size
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing, Entry
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import width_of

COLOURS = {
    EARLIER: palette.YELLOW,
    "activations": palette.BLUE,
    "kept for backward": palette.SKY,
    "gradients": palette.ORANGE,
    "workspace": palette.GREY,
    "copies": palette.GREEN,
}
"""Causes from the bottom up."""

KINDS = EARLY_BACKWARD, *[kind.value for kind in StageKind]
PART_OF = {
    StageKind.RECOMPUTE.value: "forward",
    StageKind.NARROW.value: "forward",
    StageKind.WIDEN.value: "backward",
    StageKind.WIDEN_SAVED.value: "backward",
    StageKind.MULTIPLY.value: "backward",
}
"""The part of the step that a stage is drawn in, of those that are named otherwise."""

HINTED = 400
"""Up to so many stages each tells its numbers to those who point at it."""

FAR = 5
"""A padded peak that is more than so many times as high as the rest is told, not drawn: to its
scale the step itself would be a line on the floor."""

HEIGHT = 300.0
BAND = 16.0
DASH = "6 4"


def memory(
    graph: Graph | MemoryUse, *, limit: int | str | None = None,
    padded: int | MemoryUse | None = None,
) -> Picture:  # fmt: skip
    """Draw the bytes alive at each stage of a step by what they are for, below its prediction.

    A stage is a batch, or several that may run at once, forward or backward. The prediction is the
    arena that is planned before the first kernel, and then taken; what it is above the highest
    stage are gaps between blocks.

    Args:
        graph:  a graph that has run, which may be closed: of its runs the one that held most; or
            what `graph.estimate(loss)` returns, before anything runs.
        limit:  a limit in bytes or as "2GiB"; by default that of `graph.backward(memory_limit=)`.
        padded: the peak of the same mini-batch when it is padded, in bytes
            (`db.padding.padded_peak`), or as the `MemoryUse` of such a graph, for its curve. Bytes
            that are more than 5 times all else are written above the picture, and not drawn.

    Raises:
        GraphError:    nothing has run.
        ArgumentError: `graph` is neither, or `limit` or `padded` is not a number of bytes.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [[1.0] * 10] * 50).keep()
        ...     graph.backward(F.sum(F.tanh(x)))
        >>> print(db.pictures.memory(graph).description.splitlines()[0])
        Peak 6,008 bytes of 6 stages, predicted 6,008 bytes, in forward Sum.
    """
    use = _use(graph)
    stages = _thinned(_stages(use))
    limit_bytes = use.limit if limit is None else parse_bytes("memory: limit", limit)
    curve = _stages(padded) if isinstance(padded, MemoryUse) else []
    padded_bytes = padded.peak_bytes if isinstance(padded, MemoryUse) else padded
    if padded_bytes is not None:
        padded_bytes = integer("memory", "padded", padded_bytes)
    levels = [
        (palette.INK, "predicted, and taken", use.peak_bytes),
        (palette.VERMILION, "limit", limit_bytes),
    ]
    far = ""
    if padded_bytes and not curve and padded_bytes > FAR * max(use.peak_bytes, limit_bytes or 0):
        far = f" Padded it would be {size(padded_bytes)}, far above the picture."
    else:
        levels += [(palette.PURPLE, "padded", padded_bytes)]
    drawing = Drawing(
        "Memory over a training step" if _goes_back(stages) else "Memory over a run",
        note=f"The peak is {size(use.peak_bytes)} in {_counted(use.peak_stage)}."
        + (f" To stay within the limit: {use.saving}." if use.saving else "")
        + far,
    )
    inside = drawing.width - 2 * MARGIN
    causes = [cause for cause in COLOURS if any([cause in sizes for _, sizes in stages])]
    top = drawing.legend(MARGIN, drawing.top, [(COLOURS[c], c) for c in causes])
    lines: list[Entry] = [(c, f"{name}, {size(n)}") for c, name, n in levels if n is not None]
    top = drawing.legend(MARGIN, top, lines, dash=DASH) + 8
    highest = max([n for _, _, n in levels if n is not None])
    panel = Panel(
        drawing, MARGIN, top + BAND, inside, HEIGHT, (0, len(stages)), (0, highest),
        y_format=size, x_title="stages in the order in which they run",
    )  # fmt: skip
    _band(panel, top, [label for label, _ in stages])
    _stack(panel, stages, causes)
    if curve:
        shares = [k * len(stages) / max(1, len(curve)) for k in range(len(curve))]
        panel.curve(shares, [sum(sizes.values()) for _, sizes in curve], palette.PURPLE)
    for colour, _, level in levels:
        if level is not None:
            panel.level(level, colour, dash=DASH)
    if len(stages) <= HINTED:
        _hints(panel, stages)
    return drawing.finish(_words(use, limit_bytes, padded_bytes))


Stages = Sequence[tuple[str, Mapping[str, int]]]


def _use(graph: object) -> MemoryUse:
    use = graph.memory_use if isinstance(graph, Graph) else graph
    if not isinstance(use, MemoryUse):
        raise refused(
            "memory", f"graph is {shown(graph)}", "a graph that has run, or a MemoryUse",
            "give the graph, or graph.estimate(loss)",
        )  # fmt: skip
    if not use.stages:
        raise GraphError.at_caller(
            "memory: the graph has not run, and nothing is planned.\n"
            "  rule: a run plans its memory when a value is asked for\n"
            "  fix:  call graph.backward(loss) first, or draw graph.estimate(loss)"
        )
    return use


def _stages(use: MemoryUse) -> Stages:
    held = use.by_cause.get(EARLIER, 0)
    return [(label, {EARLIER: held, **sizes} if held else sizes) for label, sizes in use.stages]


def _thinned(stages: Stages) -> Stages:
    """At most as many stages as a picture has columns: of each few the fullest."""
    few = -(-len(stages) // 700)
    return [
        max(stages[k : k + few], key=lambda stage: sum(stage[1].values()))
        for k in range(0, len(stages), few)
    ]


def _goes_back(stages: Stages) -> bool:
    return any([_kind(label) == "backward" for label, _ in stages])


def _kind(label: str) -> str:
    """The kind of a stage: "forward", "backward", "early backward" or "accumulate"."""
    kind, _ = _parts(label)
    return PART_OF.get(kind, kind)


def _parts(label: str) -> tuple[str, str]:
    """A stage's kind, and its node types."""
    kind = max([kind for kind in KINDS if f"{label} ".startswith(f"{kind} ")], key=len)
    return kind, label[len(kind) + 1 :]


def _counted(label: str) -> str:
    """A stage's label with each node type once: "forward 2 × Scan"."""
    kind, types = _parts(label)
    counts = Counter(types.split(", "))
    texts = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    return f"{kind} {', '.join(texts)}"


def _band(panel: Panel, top: float, labels: Sequence[str]) -> None:
    """A line above the panel that says where forward is, and where backward."""
    begin = 0
    for kind, members in groupby(labels, _kind):
        end = begin + len(list(members))
        x, right = panel.x(begin), panel.x(end)
        panel.drawing.rectangle(x, top, max(1, right - x - 1), BAND - 2, palette.PANEL, hint=kind)
        fitting = [
            name
            for name in (kind, kind.partition(" ")[0])  # "early backward", "early"
            if width_of(name, SMALL_SIZE) + 6 <= right - x
        ]
        if fitting:
            panel.drawing.small((x + right) / 2, top + SMALL_SIZE, fitting[0], "middle")
        begin = end


def _stack(panel: Panel, stages: Stages, causes: Sequence[str]) -> None:
    base = [0] * len(stages)
    for cause in causes:
        heights = [low + sizes.get(cause, 0) for low, (_, sizes) in zip(base, stages, strict=True)]
        boxes = [
            (panel.x(k), panel.y(high), panel.x(k + 1) - panel.x(k), panel.y(low) - panel.y(high))
            for k, (low, high) in enumerate(zip(base, heights, strict=True))
            if high > low
        ]
        panel.drawing.rectangles(boxes, COLOURS[cause])
        base = heights


def _hints(panel: Panel, stages: Stages) -> None:
    for k, (label, sizes) in enumerate(stages):
        parts = "; ".join([f"{cause} {count:,}" for cause, count in sizes.items()])
        x, top = panel.x(k), panel.y.end
        panel.drawing.rectangle(
            x, top, panel.x(k + 1) - x, panel.y.begin - top, palette.INK, opacity=0.001,
            hint=f"stage {k}: {_counted(label)}, {sum(sizes.values()):,} bytes ({parts})",
        )  # fmt: skip


def _words(use: MemoryUse, limit: int | None, padded: int | None) -> str:
    lines = [
        f"Peak {use.live_bytes:,} bytes of {len(use.stages)} stages, "
        f"predicted {use.peak_bytes:,} bytes, in {_counted(use.peak_stage)}.",
        "At the peak: " + "; ".join([f"{c} {n:,}" for c, n in use.by_cause.items() if n]) + ".",
    ]
    if limit is not None:
        lines.append(f"Limit {limit:,} bytes." + (f" To keep it: {use.saving}." * bool(use.saving)))
    if padded is not None:
        times = f", {padded / use.peak_bytes:.1f} times as much" if use.peak_bytes else ""
        lines.append(f"Padded {padded:,} bytes{times}.")
    return "\n".join(lines)
