"""`check_policies`, `check_limits`, `check_sentences`: a random graph gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dynbatch.backend import Array
from dynbatch.batcher.schedule.policies import POLICIES, Policy
from dynbatch.batcher.schedule.schedule import policy_name
from dynbatch.debugging.difference import differing, element, magnitude
from dynbatch.graph import Graph
from dynbatch.parameter import Parameter
from dynbatch.testing.pool import NanPool
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import backward, gradient_of
from dynbatch.testing.random_graph import RandomGraph

Outcome = dict[str, Array]


def outcome(
    random_graph: RandomGraph,
    policy: str | Policy,
    parameters: Iterable[Parameter] = (),
    share: float | None = None,
) -> Outcome:
    """Losses, values and gradients of the kept nodes, and gradients of all parameters, by name.

    Args:
        parameters: further ones, which the functions of the graph use; in float64.
        share:      of the memory that backward takes, the most that it may take; None for no limit.
    """
    everyone = {p.uid: p for p in [*random_graph.parameters.values(), *parameters]}.values()
    for parameter in everyone:
        parameter.zero_grad()
    arrays: Outcome = {}
    with Graph(dtype="float64", policy=policy, seed=3, pool=NanPool()) as graph:
        built = random_graph.build(graph)
        losses = [built.loss]
        if random_graph.backwards == 2:
            losses.insert(0, built.losses[0])
            graph.forward()
        for number, loss in enumerate(losses):
            backward(graph, loss, share)
            arrays[f"loss {number}"] = loss.value
            for name, node in built.kept.items():
                arrays[f"{name}: gradient {number}"] = gradient_of(node)
        for name, node in built.kept.items():
            if node._block is not None:  # else no loss needed it
                arrays[f"{name}: value"] = node.value
    for parameter in everyone:
        assert not (parameter.frozen and parameter.grad is not None), parameter.name
        arrays[f"gradient of {parameter.name!r}"] = dense_gradient(parameter)
    return arrays


def check_policies(
    random_graph: RandomGraph,
    parameters: Iterable[Parameter] = (),
    policies: Sequence[str | Policy] = tuple(POLICIES),
    inlined: bool = False,
    tolerance: float = 1e-9,
) -> None:
    """Check a random graph under every policy against one by one, on memory full of NaN.

    Losses, values and gradients of kept nodes, gradients of all parameters; in float64.

    Args:
        random_graph: drawn by `strategies.random_graphs`, or by `random_graphs.draw` of a seed.
        parameters:   further ones, which its functions use; in float64.
        policies:     names, or functions of your own (see `dynbatch.Policy`).
        inlined:      also against the graph in which cells are plain functions. Not where dropout
                      reads what a cell gave: its mask depends on how that was computed.
        tolerance:    times the largest element of an array, but at least 1.

    Raises:
        AssertionError: two numbers differ by more; names policy, array, element and both numbers.
    """
    parameters = list(parameters)
    expected = outcome(random_graph, "one_by_one", parameters)
    for policy in policies:
        if policy != "one_by_one":
            actual = outcome(random_graph, policy, parameters)
            _compare(f"under {policy_name(policy)}", actual, expected, tolerance)
    if inlined:
        actual = outcome(replace(random_graph, inline=True), "one_by_one", parameters)
        # The gradient of what a call returned is that of its readers; a plain function may read
        # the value itself on the way to another one.
        alike = {k: v for k, v in expected.items() if "kept node" not in k or "gradient" not in k}
        _compare("with cells as plain functions", actual, alike, tolerance)


def check_limits(
    random_graph: RandomGraph,
    parameters: Iterable[Parameter] = (),
    policies: Sequence[str | Policy] = tuple(POLICIES),
    shares: Sequence[float] = (0.7, 0.5, 0.0),
    tolerance: float = 1e-9,
) -> None:
    """Check that a `memory_limit` changes no number of a random graph, and is kept.

    What `check_policies` compares: each policy within so many shares of what it takes without a
    limit, against one by one without.

    Args:
        shares: a limit that is too low becomes the least that the run needs.

    Raises:
        AssertionError: two numbers differ by more; names the run, array, element and both numbers.
            Or a run took more than its limit.
    """
    parameters = list(parameters)
    expected = outcome(random_graph, "one_by_one", parameters)
    for policy in policies:
        for share in shares:
            actual = outcome(random_graph, policy, parameters, share)
            title = f"under {policy_name(policy)} within {share:.0%} of the memory"
            _compare(title, actual, expected, tolerance)


def check_sentences(
    random_graph: RandomGraph,
    parameters: Iterable[Parameter] = (),
    policies: Sequence[str] = tuple(POLICIES),
    together: int = 1,
    tolerance: float = 1e-9,
) -> None:
    """Check that permuting, adding or removing sentences changes no other sentence's numbers.

    What `check_policies` compares, of a graph whose loss is the sum of its sentences' losses:
    against each sentence alone, one node at a time. Not for functions that drop features of what
    all sentences share: such nodes are told apart by the order in which they were made.

    Args:
        together: so many sentences are run "alone", where they are too many for single ones.

    Raises:
        AssertionError: two numbers differ by more; names the run, array, element and both numbers.
    """
    parameters = list(parameters)
    plan = replace(random_graph, tail="sum", joins="F.sum", unread=(), backwards=1)
    everyone = list(range(len(plan)))
    alone = [
        (part, outcome(replace(plan, numbers=part), "one_by_one", parameters))
        for part in [everyone[k : k + together] for k in everyone[::together]]
    ]
    shuffled = np.random.default_rng(plan.seed).permutation(len(alone)).tolist()
    runs = [(f"all sentences under {policy}", [*range(len(alone))], policy) for policy in policies]
    if together == 1:
        runs += [(f"without sentence {k}", everyone[:k] + everyone[k + 1 :], policies[0])
                 for k in everyone if len(everyone) > 1]  # fmt: skip
    else:
        runs = [run for run in runs if run[2] != "one_by_one"]
    runs.append(("the sentences in another order", shuffled, policies[0]))
    for title, chosen, policy in runs:
        numbers = [number for k in chosen for number in alone[k][0]]
        actual = outcome(replace(plan, numbers=numbers), policy, parameters)
        _compare(title, actual, _merged([alone[k][1] for k in chosen]), tolerance)


def _merged(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of several graphs as one: what they share is summed."""
    merged: Outcome = {}
    for arrays in outcomes:
        for name, array in arrays.items():
            is_value = name.startswith("sentence") or name.endswith("value")
            merged[name] = array if is_value else merged.get(name, np.zeros(())) + array
    return merged


def _compare(title: str, actual: Outcome, expected: Outcome, tolerance: float) -> None:
    report = difference(title, actual, expected, tolerance)
    if report is not None:
        raise AssertionError(
            f"{report}\n  rule: neither the order of nodes nor other sentences change a number"
        )


def difference(title: str, actual: Outcome, expected: Outcome, tolerance: float) -> str | None:
    """The first element that differs by more than `tolerance` times its array's largest."""
    for name, array in expected.items():
        if name not in actual and name.endswith("value"):
            continue  # reading another value ran this node in one graph, and nothing in the other
        wrong = differing(actual[name], array, tolerance * max(1.0, magnitude(array)))
        if wrong.size:
            index = element(wrong[0], array.shape)
            return (
                f"{name}, element {index} of shape {array.shape}: {actual[name][index]:.17g} "
                f"{title}, {array[index]:.17g} expected; {wrong.size} of {array.size} "
                "elements differ"
            )
    return None
