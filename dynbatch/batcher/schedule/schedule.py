"""`schedule`: from nodes to a `Plan`. Pure; a structure seen before costs a hash."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.batcher.schedule.plan import BatchStep, Plan, Structure
from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.errors import GraphError
from dynbatch.nodes.base import Node
from dynbatch.recent import Recent

CACHED_PLANS = 64
_plans: Recent[tuple[str, Structure], Plan] = Recent(CACHED_PLANS)


def structure_of(nodes: Sequence[Node]) -> Structure:
    """The structure of nodes in a topological order; others are already computed.

    Raises:
        GraphError: a node reads one that follows it: somebody has made a cycle.
    """
    position = {node.index: i for i, node in enumerate(nodes)}
    inputs = tuple(
        [
            tuple([position[x.index] for x in node.producers() if x.index in position])
            for node in nodes
        ]
    )
    for i, places in enumerate(inputs):
        if places and max(places) >= i:
            raise GraphError(
                f"{nodes[i].label()} reads {nodes[max(places)].label()}, which was made after it.\n"
                "  rule: a node reads nodes that were there when it was made: there are no cycles\n"
                "  fix:  do not assign to `node.inputs`; make a new node"
            )
    return Structure(tuple([node.sig for node in nodes]), inputs)


def schedule(nodes: Sequence[Node], policy: str = "by_bound") -> Plan:
    """Group nodes into batches.

    Args:
        nodes:  nodes to run, in creation order.
        policy: a name of `POLICIES`.

    Raises:
        ValueError: unknown policy.
    """
    return schedule_structure(structure_of(nodes), policy)


def schedule_structure(structure: Structure, policy: str) -> Plan:
    """The plan of a structure, from the cache where it was planned before."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; known: {sorted(POLICIES)}")
    key = (policy, structure)
    found = _plans.find(key)
    if found is not None:
        return found
    steps = ordered_for_readers(structure, list(POLICIES[policy](structure)))
    plan = Plan(structure, tuple(steps), policy)
    plan.validate()
    return _plans.enter(key, plan)


def ordered_for_readers(structure: Structure, steps: Sequence[BatchStep]) -> list[BatchStep]:
    """Put the nodes of each step in the order in which the first step that reads them will.

    The outputs of a step lie in memory in this order, so that the reader's packed input is a view
    of them and not a copy. Nodes that nothing reads keep the order of creation.
    """
    never = (len(steps), 0, 0)
    place = [never] * len(structure)
    ordered: list[BatchStep] = []
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        nodes = sorted(step.nodes, key=lambda node: (place[node], node))
        for position, node in enumerate(nodes):
            for slot, source in enumerate(structure.inputs[node]):
                place[source] = min(place[source], (number, slot, position))
        ordered.append(BatchStep(step.signature, tuple(nodes)))
    return ordered[::-1]
