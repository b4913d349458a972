"""`to_dot()`: nodes as a Graphviz drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbatch.arguments import integer, refused
from dynbatch.batcher.steps.members import Members
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.cells.calls.call import ResultPart
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.row import Row
from dynbatch.nodes.stream import Sentences


def sentence_nodes(
    nodes: Sequence[Node], sentence: int, owner: str = "to_dot", name: str = "sentence"
) -> list[Node]:
    """The nodes of one sentence of a graph, and their inputs, in creation order.

    Args:
        owner, name: of the function and its argument, for errors.

    Raises:
        ArgumentError: the graph does not have that sentence.
    """
    sentences = Sentences(nodes)
    if not 0 <= integer(owner, name, sentence) < len(sentences):
        rule = f"the graph has {len(sentences)}, counted from 0"
        fix = "give one of these; graph.sentence(node) is that of a node"
        raise refused(owner, f"{name} is {sentence}", rule, fix)
    members = [node for node in nodes if sentences.of(node) == sentence]
    wanted = {x.index for node in members for x in [node, *node.inputs]}
    return [node for node in nodes if node.index in wanted]


def step_numbers(steps: Sequence[StepRun]) -> dict[int, str]:
    """The batch step of each node that has run, by index: "4"; of a cell's call "4, part 1 of 3",
    and "4 to 9" of a block's.
    """
    numbers: dict[int, str] = {}
    for number, step in enumerate(steps):
        if isinstance(step.nodes, Members):
            for call in step.nodes.batch.calls:
                first = numbers.get(call.index, str(number)).partition(" ")[0]
                numbers[call.index] = f"{first} to {number}"
            continue
        for node in step.nodes:
            if isinstance(node, RegionNode):
                numbers |= {
                    call.index: f"{number}, part {part} of {step.num_batches}"
                    for call, part in node.calls()
                }
            else:
                numbers[node.index] = str(number)
    return numbers


def dot(nodes: Sequence[Node], steps: Mapping[int, str], title: str) -> str:
    """A `digraph` of nodes with type, index, shape, parameters and batch.

    Args:
        nodes: in creation order; inputs outside them are left out.
        steps: the batch step in words of each node that has run, by index.
        title: the drawing's caption.
    """
    inside = {node.index for node in nodes}
    lines = [
        "digraph sentence {",
        f"  label={_quoted(title)};",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
    ]
    for node in nodes:
        text = [f"{node.label()} {', '.join(map(str, node.shapes))}"]
        text += [f"{p.name} {p.shape}" for p in node.all_parameters()]
        text.append(_when(node, steps))
        lines.append(f"  n{node.index} [label={_quoted(*text)}];")
    for node in nodes:
        lines += [f"  n{x.index} -> n{node.index};" for x in node.inputs if x.index in inside]
    return "\n".join([*lines, "}", ""])


def _when(node: Node, steps: Mapping[int, str]) -> str:
    step = steps.get(node.call.index if isinstance(node, ResultPart) else node.index)
    if step is not None:
        return f"batch {step}"
    if isinstance(node, Row) and node.source.index in steps:
        return "read in place"
    return "not run"


def _quoted(*lines: str) -> str:
    """A DOT string of lines. Backslashes are doubled: `\\N` would be the node's name."""
    escaped = [
        line.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
        for line in lines
    ]
    return '"' + "\\n".join(escaped) + '"'
