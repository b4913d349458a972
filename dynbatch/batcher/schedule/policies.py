"""Policies: in which order ready nodes are grouped. Functions of a `Structure`: no arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dynbatch.batcher.schedule.frontier import Frontier
from dynbatch.batcher.schedule.machine import Machine, fit
from dynbatch.batcher.schedule.plan import BatchStep, Kind, Structure
from dynbatch.recent import Recent

Policy = Callable[[Structure], Iterable[BatchStep]]

FITTED_KINDS = 64
_fitted: Recent[Kind, Policy] = Recent(FITTED_KINDS)


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

    The average is over all nodes of the signature that have not run, so that a kind whose
    other members come late waits for them. Ties break on the first node created.

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
    """As `by_bound`, corrected by a finite-state machine that is fitted once per kind of structure.

    A kind is a set of signatures and which reads which. The first structure of a kind is the one it
    is fitted on, and has no more batches than under any other policy; later ones use what it found.

    Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851; see `dynbatch.batcher.schedule.machine`.
    """
    kind = structure.kind()
    policy = _fitted.find(kind)
    if policy is None:
        policy = _fitted.enter(kind, _fewest(structure))
    return policy(structure)


def _fewest(structure: Structure) -> Policy:
    """The policy of fewest batches; the fitted machine where others have no fewer."""
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
