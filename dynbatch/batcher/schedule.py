"""`schedule`: from nodes to a `Plan`. Pure; a structure seen before costs a hash."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dynbatch.batcher.plan import Plan, Structure
from dynbatch.batcher.policies import POLICIES
from dynbatch.nodes.base import Node

CACHED_PLANS = 64
_plans: OrderedDict[tuple[str, Structure], Plan] = OrderedDict()


def structure_of(nodes: Sequence[Node]) -> Structure:
    """The structure of nodes in creation order; inputs outside `nodes` are already computed."""
    position = {node.index: i for i, node in enumerate(nodes)}
    inputs = tuple(
        [
            tuple([position[x.index] for x in node.inputs if x.index in position])
            for node in nodes
        ]
    )
    return Structure(tuple([node.sig for node in nodes]), inputs)


def schedule(nodes: Sequence[Node], policy: str = "by_agenda") -> Plan:
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
    plan = _plans.get(key)
    if plan is None:
        plan = Plan(structure, tuple(POLICIES[policy](structure)), policy)
        plan.validate()
        _plans[key] = plan
        if len(_plans) > CACHED_PLANS:
            _plans.popitem(last=False)
    else:
        _plans.move_to_end(key)
    return plan
