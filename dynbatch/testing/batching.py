"""`check_batching`: a mini-batch, under every policy, against its sentences one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.debugging.difference import differing, element, magnitude
from dynbatch.graph import Graph
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.sources import input as input_node
from dynbatch.parameter import Parameter
from dynbatch.testing.pool import nan_pool
from dynbatch.testing.precision import Parameters, dense_gradient, in_float64
from dynbatch.testing.probe import (
    Build,
    backward,
    gradient_of,
    outputs_of,
    probe,
    random_like,
    require_finite,
)


@dataclass
class Outcome:
    """The results of a run of some sentences, by the names that errors use."""

    values: dict[str, Array]
    gradients: dict[str, Array]
    parameters: list[Array]


@dataclass
class Case:
    """One check: its function, its sentences, and its tolerances."""

    build: Build
    examples: Sequence[tuple[Any, ...]]
    parameters: Sequence[Parameter]
    seed: int
    rtol: float
    atol: float


def check_batching(
    build: Build,
    examples: Sequence[Any] | None = None,
    *,
    shapes: Sequence[Sequence[Shape]] | None = None,
    parameters: Parameters = (),
    seed: int = 0,
    rtol: float = 1e-9,
    atol: float = 1e-10,
) -> None:
    """Check that batching a function of one sentence changes nothing.

    Values, gradients of all inputs and gradients of all parameters of a mini-batch must equal those
    of its sentences run one node at a time: under every policy, in other orders, with sentences
    left out, for a batch of one, whether values are read before backward or not. Inputs must not
    be modified. Output gradients are random; everything runs in float64, on memory full of NaN.

    Args:
        build:      (graph, *arguments) -> a node or several: the function of one sentence.
        examples:   for each sentence its argument, or a tuple of them. Floating-point arrays arrive
                    as nodes, everything else (ids, a tree) as it is.
        shapes:     instead of examples: for each sentence the shapes of its inputs, which are drawn
                    from a standard normal.
        parameters: parameters, or a module, that `build` uses. Float64 while the check runs.

    Raises:
        AssertionError: two numbers differ by more than atol + rtol · (largest of the array); names
            the run, the sentence, the array, the element and both numbers.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> softsign = lambda graph, x: x / (1 + F.abs(x))
        >>> db.testing.check_batching(softsign, shapes=[[(3, 4)], [(0, 4)], [(1, 4)]])
    """
    if examples is None:
        if any(isinstance(shape, int) for sentence in shapes or () for shape in sentence):
            raise TypeError(
                f"check_batching: shapes={list(shapes or ())} is not a list of sentences.\n"
                "  rule: for each sentence a list of the shapes of its inputs\n"
                "  fix:  shapes=[[(3, 4)], [(0, 4)]] for two sentences of one input"
            )
        generator = np.random.default_rng(seed)
        examples = [
            tuple([generator.standard_normal(shape) for shape in sentence])
            for sentence in shapes or ()
        ]
    sentences = [example if isinstance(example, tuple) else (example,) for example in examples]
    with in_float64(parameters) as distinct:
        _check(Case(build, sentences, distinct, seed, rtol, atol))


def _check(case: Case, *, twice: bool = True) -> None:
    """Run and compare each mini-batch twice, or with values read before backward in turn.

    Then sentences are left out and alone in turn, too.
    """
    everyone = list(range(len(case.examples)))
    alone = {}
    for k in everyone:
        alone[k] = run(case, [k], "one_by_one", reads=True)
        if twice:
            unread = run(case, [k], "one_by_one", reads=False)
            alone[k] = replace(unread, values=alone[k].values)
    runs: list[tuple[str, list[int], str]] = []
    for policy in POLICIES:
        runs.append((f"the whole mini-batch, policy {policy}", everyone, policy))
    shuffled = np.random.default_rng(case.seed).permutation(len(everyone)).tolist()
    runs.append(("the sentences in reverse order", everyone[::-1], "by_bound"))
    runs.append((f"the sentences in order {shuffled}", shuffled, "by_bound"))
    runs += [(f"sentence {k} left out", [*everyone[:k], *everyone[k + 1 :]], "by_bound")
             for k in everyone if len(everyone) > 1 and (twice or k % 2)]  # fmt: skip
    runs += [(f"a batch of sentence {k} alone", [k], "by_bound")
             for k in everyone if twice or not k % 2]  # fmt: skip
    for position, (title, sentences, policy) in enumerate(runs):
        for reads in (False, True) if twice else (position % 2 == 0,):
            outcome = run(case, sentences, policy, reads)
            when = "values read before backward" if reads else "forward and backward in one run"
            compare(case, f"{title}, {when}", outcome, [alone[k] for k in sentences])


def run(
    case: Case, sentences: Sequence[int], policy: str, reads: bool, device: str = "cpu"
) -> Outcome:
    """One graph of some sentences; with `reads`, its values are computed first and compared."""
    for parameter in case.parameters:
        parameter.grad = None
    inputs: dict[str, Node] = {}
    outputs: dict[str, Node] = {}
    weights: list[Array] = []
    with Graph(device, "float64", policy, seed=case.seed, pool=nan_pool(device)) as graph:
        for k in sentences:
            arguments: list[Any] = []
            for position, argument in enumerate(case.examples[k]):
                if isinstance(argument, np.ndarray) and argument.dtype.kind == "f":
                    argument = input_node(graph, argument).keep()
                    inputs[f"sentence {k}, input {position}"] = argument
                arguments.append(argument)
            built = outputs_of(case.build, graph, arguments)
            weights += random_like(built, case.seed, k)
            outputs.update({f"sentence {k}, output {i}": y for i, y in enumerate(built)})
        loss = probe(list(outputs.values()), weights)
        values: dict[str, Array] = {}
        # Values that are read first are computed by a run of their own, before backward's.
        if reads:
            graph.forward()
            require_finite("check_batching", outputs)
            values = {name: node.value for name, node in outputs.items()}
        backward(graph, loss)
        gradients = {name: gradient_of(node) for name, node in inputs.items()}
        _check_unchanged(case, inputs)
    return Outcome(values, gradients, [dense_gradient(p) for p in case.parameters])


def _check_unchanged(case: Case, inputs: dict[str, Node]) -> None:
    for name, node in inputs.items():
        wanted = node.array.astype(np.float64)  # type: ignore[attr-defined]
        if not np.array_equal(node.value, wanted, equal_nan=True):
            raise AssertionError(
                f"check_batching: {name}: the function modified its input.\n"
                "  rule: forward and backward write only into the arrays given for that"
            )


def compare(case: Case, title: str, outcome: Outcome, alone: Sequence[Outcome]) -> None:
    """Raise `AssertionError` unless an outcome is that of its sentences one at a time."""
    for single in alone:
        if outcome.values:
            for name, expected in single.values.items():
                _equal(case, title, f"{name}: value", outcome.values[name], expected)
        for name, expected in single.gradients.items():
            _equal(case, title, f"{name}: gradient", outcome.gradients[name], expected)
    for position, parameter in enumerate(case.parameters):
        total = sum([single.parameters[position] for single in alone], np.zeros(parameter.shape))
        name = f"parameter {parameter.name!r}: gradient"
        _equal(case, title, name, outcome.parameters[position], total)


def _equal(case: Case, title: str, name: str, actual: Array, expected: Array) -> None:
    if actual.shape != expected.shape:
        raise AssertionError(
            f"check_batching: {title}: {name} has shape {actual.shape}, alone {expected.shape}."
        )
    wrong = differing(actual, expected, case.atol + case.rtol * magnitude(expected))
    if wrong.size:
        index = element(wrong[0], actual.shape)
        raise AssertionError(
            f"check_batching: {title}: {name}, element {index} of shape {actual.shape}: "
            f"{actual[index]:.9g} batched, {expected[index]:.9g} alone.\n"
            f"  {wrong.size} of {actual.size} elements differ\n"
            "  rule: a sentence's numbers do not depend on what else is in the mini-batch"
        )
