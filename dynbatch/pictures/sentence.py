"""`sentence()`: the nodes of one sentence in layers, coloured by the batch that each ran in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dynbatch.arguments import refused, shown
from dynbatch.batcher.schedule.folds import Folds
from dynbatch.blocks.call import BlockResult
from dynbatch.cells.calls.call import ResultPart
from dynbatch.cells.calls.stack import StackCalls
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row
from dynbatch.nodes.sources import ParameterNode
from dynbatch.pictures.boxes import Boxes, NodeBox, narrow, shallow
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing
from dynbatch.pictures.layout import layers_of, ordered, placed, with_bends
from dynbatch.pictures.palette import GREY, INK, PANEL, SOFT, series
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import plural, width_of
from dynbatch.reporting.graphviz import sentence_nodes, step_numbers

LEAST, MOST = 86.0, 170.0  # the width of boxes
ACROSS = 960.0  # the width of all boxes of a layer
HEIGHT, GAP, RISE = 40.0, 8.0, 30.0
BEND, PADDING = 4.0, 5.0

IN_PLACE, FOLDED, NOT_RUN = "in place", "folded", "not run"


def sentence(graph: Graph, number: int = 0, words: Sequence[str] | None = None) -> Picture:
    """Draw the nodes of one sentence, each in the colour of the batch that it ran in.

    What is read stands below its reader, so a tree has its root at the top. A box is a node with
    its type, its shape and its batch, which is that of `graph.explain()`; a call of a cell or of a
    block is one box. "4.2" is the second batch inside of batch 4, a region of calls. The middle of
    what is wide or deep is left out, and counted. A part of `db.stack` that nothing reads, while
    another part is read, is not drawn.

    Args:
        graph:  open, as a graph frees its nodes when it is closed. It may have run or not.
        number: counted from 0 in order of creation, as errors count sentences.
        words:  of the sentence, one for each row of its tokens. What has no inputs and as many
                rows shows them all, as does each row that is read alone, `x[t]`, its own.

    Raises:
        GraphError:    the graph is closed.
        ArgumentError: the graph does not have that sentence, or no node has a row for each word.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [1.0, 2.0])
        ...     _ = F.sum(F.tanh(x)).value
        ...     print(db.pictures.sentence(graph, 0).description)
        Sentence 0 has 3 nodes in 3 layers.
        Sum, batch 2, reads Tanh.
        Tanh, batch 1, reads Input.
        Input, batch 0, reads nothing.
    """
    if not isinstance(graph, Graph):
        rule, fix = "a graph", "give the db.Graph that the sentence is built in"
        raise refused("sentence", f"graph is {shown(graph)}", rule, fix)
    graph._require_open("sentence")
    nodes = _without_spare(sentence_nodes(graph.nodes, number, "sentence", "number"))
    whole = _boxes(nodes, _batches(graph), graph._folds, _labels(nodes, words))
    short = narrow(shallow(whole))
    batches = list(dict.fromkeys([s.batch for s in short.shapes.values() if s.batch[:1].isdigit()]))
    colours = {batch: series(k) for k, batch in enumerate(batches)}
    drawing, note = _drawn(short, colours, number), _words(whole, number)
    return drawing.finish(note)


def _batches(graph: Graph) -> dict[int, str]:
    """The batch of each node that ran, by index: "4", "4.2" of a call, "4–9" of a block."""
    names = {}
    for index, text in step_numbers(graph._executor.steps).items():
        step, _, part = text.partition(", part ")
        number = str(int(part.split()[0]) + 1) if part else ""
        names[index] = f"{step}.{number}" if number else step.replace(" to ", "–")
    return names


def _labels(nodes: Sequence[Node], words: Sequence[str] | None) -> dict[int, str]:
    """The words that a node's box shows, by index.

    They stand at sources with a row for each word, else at sources of one row, if these are as
    many; and at rows of what has a row for each word.
    """
    if words is None:
        return {}
    if isinstance(words, str):
        raise refused("sentence", "words is a text", "a list of words", "give words=text.split()")
    texts = [str(word) for word in words]
    sources = [node for node in nodes if not node.inputs and not isinstance(node, ParameterNode)]
    labels = {node.index: " ".join(texts) for node in sources if _rows(node) == len(texts)}
    single = [node.index for node in sources if _rows(node) <= 1]
    if not labels and len(single) == len(texts):
        labels = dict(zip(single, texts, strict=True))
    for node in nodes:
        if isinstance(node, Row) and _rows(node.source) == len(texts):
            labels[node.index] = texts[node.row]
    if not labels:
        most = max([_rows(node) for node in sources], default=0)
        raise refused(
            "sentence", f"words has {len(texts)}, and the sentence {most} rows",
            "a word for each row of what the sentence is made of", "give its own words",
        )  # fmt: skip
    return labels


def _rows(node: Node) -> int:
    """The rows of a matrix; 0 for a value that is none."""
    return node.rows if node.ndim == 2 else 0


def _boxes(
    nodes: Sequence[Node], batches: Mapping[int, str], folds: Folds, labels: Mapping[int, str]
) -> Boxes:
    """All boxes: a part of a call's result is drawn as the call."""
    box_of = {node.index: _whole(node).index for node in nodes}
    shapes: dict[int, NodeBox] = {}
    hint: dict[int, float] = {}
    edges: dict[tuple[int, int], None] = {}
    for node in nodes:
        if box_of[node.index] != node.index:
            continue
        sources = [box_of[x.index] for x in node.inputs if x.index in box_of]
        edges |= dict.fromkeys([(source, node.index) for source in sources if source != node.index])
        shapes[node.index] = _shape(node, batches, folds, labels.get(node.index, ""))
        known = [hint[source] for source in sources]
        at = sum(known) / len(known) if known else float(node.index)
        hint[node.index] = float(node.row) if isinstance(node, Row) else at
    readers: dict[int, list[int]] = {}
    for source, reader in edges:
        readers.setdefault(source, []).append(reader)
    rows = {node.index for node in nodes if isinstance(node, Row)}
    for source, keys in readers.items():
        if rows.issuperset(keys):  # a sentence's matrix lies below the middle of its rows
            hint[source] = sum([hint[reader] for reader in keys]) / len(keys)
    return Boxes(shapes, list(edges), layers_of(list(shapes), list(edges)), hint)


def _without_spare(nodes: Sequence[Node]) -> list[Node]:
    """The nodes without parts of a stack that nothing reads: an edge from each call, told twice."""
    read = {x.index for node in nodes for x in node.inputs}
    stacked = {id(x.results) for x in nodes if isinstance(x, StackCalls) and x.index in read}
    return [
        node
        for node in nodes
        if node.index in read or not isinstance(node, StackCalls) or id(node.results) not in stacked
    ]


def _whole(node: Node) -> Node:
    return node.call if isinstance(node, ResultPart | BlockResult) else node


def _shape(node: Node, batches: Mapping[int, str], folds: Folds, label: str) -> NodeBox:
    name = node.label().partition(" #")[0]
    shapes = ["×".join(map(str, shape)) or "1" for shape in node.shapes]
    size = shapes[0] if len(set(shapes)) == 1 else ", ".join(shapes)
    batch = batches.get(node.index)
    if batch is None:
        batch = _without_batch(node, batches, folds)
    row = f" {node.row}" if isinstance(node, Row) else ""
    hint = "\n".join([repr(node), *[f"{p.name} {p.shape}" for p in node.all_parameters()], batch])
    name = f"{name}{row}: {label}" if label else f"{name}{row}"
    return NodeBox(name, size, batch, f"{name}\n{hint}" if label else hint)


def _without_batch(node: Node, batches: Mapping[int, str], folds: Folds) -> str:
    """The reason why a node has no batch: others do without it, or nothing has asked for it."""
    if isinstance(node, Row) and node.source.index in batches:
        return IN_PLACE
    readers = folds.readers_of.get(node.index, ())
    return FOLDED if any([reader.index in batches for reader in readers]) else NOT_RUN


# Drawing -----------------------------------------------------------------------------------------


def _drawn(boxes: Boxes, colours: Mapping[str, str], number: int) -> Drawing:
    rows, paths = with_bends(boxes.layer, boxes.edges)
    rows = ordered(rows, paths, boxes.hint)
    lines = [line for shape in boxes.shapes.values() for line in _lines(shape)]
    widest = max([width_of(text, SMALL_SIZE, is_bold) for text, is_bold in lines])
    most = max([sum([key in boxes.shapes for key in row]) for row in rows])
    box = max(LEAST, min(MOST, widest + 2 * PADDING, ACROSS / most - GAP))
    width = {key: BEND if key not in boxes.shapes else box for row in rows for key in row}
    middle = placed(rows, paths, width, GAP)
    left = min([middle[key] - width[key] / 2 for key in middle])
    right = max([middle[key] + width[key] / 2 for key in middle])
    drawing = Drawing(
        f"Sentence {number}, node by node",
        max(420.0, right - left + 2 * MARGIN),
        note=_note(boxes),
    )
    shift = (drawing.width - right + left) / 2 - left
    x = {key: at + shift for key, at in middle.items()}
    step = HEIGHT + RISE
    top = {
        key: drawing.top + (len(rows) - 1 - k) * step for k, row in enumerate(rows) for key in row
    }
    for path in paths:
        for low, high in pairwise(path):
            begin = top[low]
            if low not in boxes.shapes:
                drawing.line([(x[low], begin), (x[low], begin + HEIGHT)], GREY, thick=1.2)
            drawing.curve((x[high], top[high] + HEIGHT), (x[low], begin), GREY, thick=1.2)
    for key, shape in boxes.shapes.items():
        _box(drawing, x[key] - box / 2, top[key], box, shape, colours.get(shape.batch, ""))
    return drawing


def _note(boxes: Boxes) -> str:
    note = (
        "What is read stands below its reader. Boxes of one colour and number ran as one batch, "
        "with those of other sentences."
    )
    batches = {shape.batch for shape in boxes.shapes.values()}
    inner = min([batch for batch in batches if "." in batch], default="")
    if inner:
        outer, _, number = inner.partition(".")
        note += f" {inner} is the batch number {number} inside of batch {outer}."
    if any(["–" in batch for batch in batches]):
        note += " A block is one box; graph.explain() has its batches."
    if IN_PLACE in batches:
        note += " A row in place is read where it lies, without a copy."
    if FOLDED in batches:
        note += " What is folded is computed by its reader."
    return note


def _lines(shape: NodeBox) -> list[tuple[str, bool]]:
    if shape.count:
        return [(shape.name, False)]
    return [(shape.name, True), (f"{shape.size} · {_when(shape)}", False)]


def _when(shape: NodeBox) -> str:
    return f"batch {shape.batch}" if shape.batch[:1].isdigit() else shape.batch


def _box(drawing: Drawing, x: float, y: float, width: float, shape: NodeBox, colour: str) -> None:
    drawing.rectangle(
        x, y, width, HEIGHT, colour or PANEL, outline="" if colour else GREY, radius=5,
        hint=shape.hint,
    )  # fmt: skip
    lines = _lines(shape)
    base = y + HEIGHT / 2 + 4 - 8 * (len(lines) - 1)
    for number, (text, is_bold) in enumerate(lines):
        drawing.text(
            x + width / 2, base + 16 * number, text, colour=SOFT if number else INK, on=colour,
            size=SMALL_SIZE, anchor="middle", bold=is_bold, within=width - 2 * PADDING,
        )  # fmt: skip


def _words(boxes: Boxes, number: int) -> str:
    reads: dict[int, list[str]] = {}
    for source, reader in boxes.edges:
        reads.setdefault(reader, []).append(boxes.shapes[source].name)
    deep = 1 + max(boxes.layer.values())
    nodes = plural(len(boxes.shapes), "node")
    lines = [f"Sentence {number} has {nodes} in {plural(deep, 'layer')}."]
    for key in sorted(boxes.shapes, key=lambda key: -boxes.layer[key])[:100]:
        shape = boxes.shapes[key]
        when = _when(shape)
        read = ", ".join(reads.get(key, ["nothing"])[:8])
        lines.append(f"{shape.name}, {when}, reads {read}.")
    return "\n".join(lines)
