"""Policies: functions from a `Structure` to batches, without arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dynbatch.batcher.schedule.frontier import Frontier
from dynbatch.batcher.schedule.machine import Machine, fit
from dynbatch.batcher.schedule.plan import BatchStep, Structure, TypeGraph
from dynbatch.recent import Recent


class Policy(Protocol):
    """A function that decides which nodes run together, and when: `Graph(policy=function)`.

    It takes a structure, which is all that batching depends on: `structure.signatures[node]` is an
    integer, and nodes of equal ones may share a batch; `structure.inputs[node]` are the positions
    of the node's inputs; `len(structure)` is the number of nodes, which are in creation order.

    It returns or yields the batches in order, each made by `structure.batch(nodes)`. Every node is
    in one batch, after its inputs, beside nodes of its signature only.

    A policy is called once for a structure, whatever the lengths of the sentences, and its plan is
    kept for the next mini-batch of the same structure. So it depends on the structure alone.

    Calls of cells run inside of a region, which is one node for the scheduler: the policy is called
    for the region as well, with a structure of its calls.

    Raises:
        PlanError: what it yielded breaks a rule; the first node that does is named.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> def first_ready(structure):
        ...     left = list(range(len(structure)))
        ...     while left:
        ...         ready = [n for n in left if not {*structure.inputs[n]} & {*left}]
        ...         signature = structure.signatures[ready[0]]
        ...         batch = [n for n in ready if structure.signatures[n] == signature]
        ...         left = [n for n in left if n not in batch]
        ...         yield structure.batch(batch)
        >>> with db.Graph(policy=first_ready) as graph:
        ...     ys = [F.tanh(F.input(graph, [0.0] * length)) for length in (1, 3)]
        ...     ys[1].value.tolist(), [len(step.nodes) for step in graph.plans[0].steps]
        ([0.0, 0.0, 0.0], [2, 2])
    """

    def __call__(self, structure: Structure, /) -> Iterable[BatchStep]:
        """The batches of a structure in order."""


FITTED_POLICIES = 64
_fitted: Recent[TypeGraph, Policy] = Recent(FITTED_POLICIES)


def by_depth(structure: Structure) -> Iterable[BatchStep]:
    """Nodes of equal depth and signature run together, the shallowest first.

    Source: Looks et al. 2017 (TensorFlow Fold), arXiv:1702.02181, section 2.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for node, depth in enumerate(structure.depths()):
        groups.setdefault((depth, structure.signatures[node]), []).append(node)
    # Ties within a depth break on the first node created.
    for (_, signature), nodes in sorted(groups.items(), key=lambda g: (g[0][0], g[1][0])):
        yield BatchStep(signature, tuple(nodes))


def by_agenda(structure: Structure) -> Iterable[BatchStep]:
    """Among ready nodes, all of the signature with the lowest average depth run next.

    The average is over all nodes of the signature that have not run, so that a signature whose
    other nodes come late waits for them. Ties break on the first node created.

    Source: Neubig, Goldberg & Dyer 2017, arXiv:1705.07860, section 3.2.
    """
    frontier = Frontier(structure)
    while frontier.ready:
        signature = frontier.lowest()
        yield BatchStep(signature, tuple(frontier.take(signature)))


def by_bound(structure: Structure) -> Iterable[BatchStep]:
    """Among ready nodes, all of a signature whose batch lowers the lower bound run next.

    That is a signature of which every longest chain left begins at a ready node: to wait for more
    of it would gain nothing. Among several, or where there is none, as `by_agenda`.
    """
    return Machine()(structure)


def learned(structure: Structure) -> Iterable[BatchStep]:
    """`by_bound`, corrected by a table that is fitted on the first structure of a type graph.

    On that structure it has no more batches than any other policy. Later structures of the same
    signatures, with the same reading which, use what was found.

    Speculative: that the table helps structures which it was not fitted on is measured on lattices
    and trees of two cells only (docs/design/batching.md); elsewhere `by_bound` is at the bound, and
    the table is empty.

    Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851; see `dynbatch.batcher.schedule.machine`.
    """
    types = structure.type_graph()
    policy = _fitted.find(types)
    if policy is None:
        policy = _fitted.enter(types, _fewest(structure))
    return policy(structure)


def _fewest(structure: Structure) -> Policy:
    """The policy with the fewest batches; ties go to the fitted machine."""
    policy: Policy
    policy, fewest = fit(structure)
    for other in (by_agenda, by_depth):
        num_batches = len(list(other(structure)))
        if num_batches < fewest:
            policy, fewest = other, num_batches
    return policy


def one_by_one(structure: Structure) -> Iterable[BatchStep]:
    """Every node alone, in creation order: the oracle that batched runs are compared with."""
    for node, signature in enumerate(structure.signatures):
        yield BatchStep(signature, (node,))


POLICIES: dict[str, Policy] = {
    "by_depth": by_depth,
    "by_agenda": by_agenda,
    "by_bound": by_bound,
    "learned": learned,
    "one_by_one": one_by_one,
}


def function_of(policy: str | Policy) -> Policy:
    """The policy function of that name.

    Raises:
        ValueError: unknown name.
    """
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; known: {sorted(POLICIES)}")
    return POLICIES[policy]
