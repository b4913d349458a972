"""`load_graph` and `replay`: a dumped graph again, under every policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynbatch.backend import Array
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.cells.calls.call import Call, ResultPart
from dynbatch.debugging.difference import tolerance_of
from dynbatch.debugging.dump import read
from dynbatch.debugging.rebuild import Reader
from dynbatch.errors import DynbatchError, FreedError, GraphError
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.testing.policies import Outcome, difference
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import gradient_of


@dataclass
class LoadedGraph:
    """A graph read from a file. Nothing of it has run; close it, or use it in a `with` block.

    Attributes:
        nodes:      in order of creation; their indices are those of the graph that was dumped.
        parameters: new ones, with the values that were dumped and no gradients.
        losses:     those that `backward` was called with, successfully or not.
        runs:       what was run before the dump, in order: nodes of a forward, or a loss.
        policy:     the policy of the graph that was dumped.
    """

    graph: Graph
    nodes: list[Node]
    parameters: list[Parameter]
    losses: list[Node]
    runs: list[list[Node] | Node]
    policy: str

    def __enter__(self) -> LoadedGraph:
        return self

    def __exit__(self, *error: object) -> None:
        self.graph.close()

    def run(self) -> None:
        """Run what was run before the dump, in the same parts, and the rest unless backward was."""
        for run in self.runs:
            if isinstance(run, Node):
                self.graph.backward(run)
            else:
                self.graph._run_targets(run)
        if not self.losses:
            self.graph.forward()


def load_graph(path: str | os.PathLike[str], **options: Any) -> LoadedGraph:
    """Build a graph again from what `graph.dump(path)` wrote.

    Node types are imported by the names in the file, so load files only of those whom you let
    choose what is imported; otherwise nothing in it is executed.

    Args:
        options: arguments of `Graph`, in place of the dumped graph's: device, policy, check, guard,
                 matmul, precision, pool.

    Raises:
        GraphError: the file does not hold a graph, a node type cannot be imported, or the policy
            was a function and none is given.
    """
    document, arrays = read(Path(path))
    names = ("device", "dtype", "policy", "grad", "seed", "matmul", "precision")
    settings = {name: document[name] for name in names}
    if settings["policy"] not in POLICIES and "policy" not in options:
        raise GraphError(
            f"load_graph: {os.fspath(path)!r} was dumped under the policy {settings['policy']!r}.\n"
            "  rule: a file holds no code, so not the function of a policy\n"
            "  fix:  load_graph(path, policy=the_function), or the name of a policy of ours"
        )
    graph = Graph(**(settings | options))
    reader = Reader(document, arrays, graph.device)
    nodes = reader.graph(document, graph)
    for number, by in document["folds"]:
        graph.absorb(nodes[number], nodes[by])
    for number, name in document["names"]:
        nodes[number].named(name)
    for number in document["kept"]:
        nodes[number].keep()
    runs = [
        nodes[run] if isinstance(run, int) else [nodes[k] for k in run] for run in document["runs"]
    ]
    losses = [run for run in runs if isinstance(run, Node)]
    return LoadedGraph(graph, nodes, reader.parameters, losses, runs, document["policy"])


def replay(
    path: str | os.PathLike[str],
    policies: Sequence[str] = tuple(POLICIES),
    tolerance: float | None = None,
    **options: Any,
) -> str | None:
    """Run a dumped graph under every policy, and compare with one by one.

    First what was run is run again, with what was kept then. If something differs, once more with
    every node kept, to find the first that differs: of values in order of creation, of gradients
    in the reverse order.

    Args:
        tolerance: times the largest element of an array, at least 1. Default: 1e-4 for float32,
                   1e-9 for float64, 2^-9 with factors rounded to TF32, 2^-6 to bfloat16.
        options:   arguments of `Graph`: device, check, guard, matmul, precision.

    Returns:
        The first difference or error in words; None if there is none.
    """
    if tolerance is None:
        document, _ = read(Path(path))
        settings = document | options
        names = [settings.get(name) or FULL for name in ("matmul", "precision")]
        tolerance = max([tolerance_of(document["dtype"], name) for name in names])
    expected = _outcome(path, "one_by_one", False, options)
    for policy in policies:
        actual = _outcome(path, policy, False, options)
        report = _compared(policy, actual, expected, tolerance)
        if report is not None:
            actual = _outcome(path, policy, True, options)
            expected = _outcome(path, "one_by_one", True, options)
            return _compared(policy, actual, expected, tolerance) or report
    return f"under every policy: {expected}" if isinstance(expected, str) else None


def _compared(
    policy: str, found: Outcome | str, expected: Outcome | str, tolerance: float
) -> str | None:
    if isinstance(found, str) or isinstance(expected, str):
        if isinstance(found, str) and isinstance(expected, str):
            return None  # both raise; `replay` reports the error of one by one
        name, error = (policy, found) if isinstance(found, str) else ("one_by_one", expected)
        return f"under {name} only: {error}"
    return difference(f"under {policy}", found, expected, tolerance)


def _outcome(
    path: str | os.PathLike[str], policy: str, keep: bool, options: dict[str, Any]
) -> Outcome | str:
    """Everything that can be read after the runs, by name; or the error."""
    values: Outcome = {}
    gradients: Outcome = {}
    with load_graph(path, **({"policy": policy} | options)) as loaded:
        graph = loaded.graph
        try:
            if keep:
                for node in readable(loaded.nodes):
                    node.keep()
            loaded.run()
            kept = [graph._kept[index] for index in sorted(graph._kept)]
            for node in readable(kept if loaded.losses else loaded.nodes):
                sentence = graph.sentence(node)
                name = f"{node.label()}, sentence {sentence}"
                value = _value_of(node)
                if node._block is not None and value is not None:
                    values[f"{name}: value"] = value
                if loaded.losses:
                    gradients[f"{name}: gradient"] = gradient_of(node)
        except (DynbatchError, ArithmeticError) as error:
            return f"{type(error).__name__}: {error}"
    parameters = {
        f"parameter {k} {p.name!r}: gradient": dense_gradient(p)
        for k, p in enumerate(loaded.parameters)
    }
    return values | dict(reversed(gradients.items())) | parameters


def readable(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with the parts of a tuple in place of the call that returned it."""
    each: list[Node] = []
    for node in nodes:
        if len(node.shapes) == 1:
            each.append(node)
        else:
            assert isinstance(node, Call)
            each += [ResultPart(node, first) for first in range(len(node.shapes))]
    return each


def _value_of(node: Node) -> Array | None:
    """A node's value; None if it has been freed."""
    try:
        return node.value
    except FreedError:
        return None
