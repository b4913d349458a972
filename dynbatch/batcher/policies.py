"""Policies: in which order ready nodes are grouped. Pure functions of a `Structure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dynbatch.batcher.plan import BatchStep, Structure

Policy = Callable[[Structure], Iterable[BatchStep]]


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
    depths = structure.depths()
    total: dict[int, int] = {}
    count: dict[int, int] = {}
    readers: list[list[int]] = [[] for _ in depths]
    waiting = [0] * len(depths)
    ready: dict[int, list[int]] = {}
    for node, (signature, inputs) in enumerate(
        zip(structure.signatures, structure.inputs, strict=True)
    ):
        total[signature] = total.get(signature, 0) + depths[node]
        count[signature] = count.get(signature, 0) + 1
        waiting[node] = len(inputs)
        for i in inputs:
            readers[i].append(node)
        if not inputs:
            ready.setdefault(signature, []).append(node)
    while ready:
        signature = min(ready, key=lambda s: (total[s] / count[s], ready[s][0]))
        nodes = sorted(ready.pop(signature))
        for node in nodes:
            total[signature] -= depths[node]
            count[signature] -= 1
            for reader in readers[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.setdefault(structure.signatures[reader], []).append(reader)
        yield BatchStep(signature, tuple(nodes))


def one_by_one(structure: Structure) -> Iterable[BatchStep]:
    """Every node alone, in creation order: the oracle that batched runs are compared with."""
    for node, signature in enumerate(structure.signatures):
        yield BatchStep(signature, (node,))


POLICIES: dict[str, Policy] = {
    "by_depth": by_depth,
    "by_agenda": by_agenda,
    "one_by_one": one_by_one,
}
