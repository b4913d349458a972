"""`schedule`: makes a `Plan` of nodes. Pure; a known structure costs a hash."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from dynbatch.arguments import refused
from dynbatch.batcher.schedule.plan import BatchStep, Plan, Structure
from dynbatch.batcher.schedule.policies import POLICIES, Policy, function_of
from dynbatch.batcher.schedule.reached import signatures_of
from dynbatch.blocks.call import RESULT, BlockResult
from dynbatch.errors import GraphError, PlanError
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation
from dynbatch.recent import Recent

CACHED_PLANS = 64
_plans_of_nodes: Recent[tuple[str | Policy, bytes], Plan] = Recent(CACHED_PLANS)
_plans: Recent[tuple[str | Policy, Structure, bool], Plan] = Recent(2 * CACHED_PLANS)


def as_policy(policy: object) -> str | Policy:
    """Check the argument of `Graph`: the name of a policy, or a function.

    Raises:
        ArgumentError: it is an unknown name, not a function, or has no hash to be kept by.
    """
    if isinstance(policy, str) and policy in POLICIES:
        return policy
    if not _is_function(policy):
        known = ", ".join(sorted(POLICIES))
        raise refused(
            "Graph", f"policy is {policy!r}", f"known policies are {known}; or a function",
            'leave it out, or give policy="by_agenda"; db.Policy says what a function returns',
        )  # fmt: skip
    return next((name for name, function in POLICIES.items() if function is policy), policy)


def _is_function(policy: object) -> TypeGuard[Policy]:
    return callable(policy) and not isinstance(policy, type) and isinstance(policy, Hashable)


def policy_name(policy: str | Policy) -> str:
    if isinstance(policy, str):
        return policy
    return str(getattr(policy, "__name__", type(policy).__name__))


def structure_of(nodes: Sequence[Operation], roots: Sequence[Node] | None = None) -> Structure:
    """The structure of nodes in a topological order; others are already computed.

    Args:
        roots: where backward begins, perhaps at nodes of other parts; None where there is none.

    Raises:
        GraphError: a node reads one that follows it: somebody has made a cycle.
    """
    position = {node.index: i for i, node in enumerate(nodes)}
    inputs = []
    for i, node in enumerate(nodes):
        read = []
        for x in node.producers() if node.phase else node.inputs:
            producer = position.get(x.index)
            if producer is not None:
                read.append(producer)
        if read and max(read) >= i:
            raise GraphError(
                f"{node.label()} reads {nodes[max(read)].label()}, which was made after it.\n"
                "  rule: a node reads nodes made before it, so there are no cycles\n"
                "  fix:  do not assign to `node.inputs`; make a new node"
            )
        inputs.append(tuple(read))
    if roots is None:
        return Structure(tuple([node.sig for node in nodes]), tuple(inputs))
    return Structure(signatures_of(nodes, inputs, roots), tuple(inputs))


def schedule(
    nodes: Sequence[Operation],
    policy: str | Policy = "by_bound",
    roots: Sequence[Node] | None = None,
    numbers: bytes = b"",
) -> Plan:
    """Group nodes into batches.

    Args:
        nodes:   nodes to run, in creation order.
        policy:  a name of `POLICIES`, or a function.
        roots:   as for `structure_of`.
        numbers: `numbers_of(nodes, roots)`, where they are known already.

    Raises:
        ValueError: unknown policy.
        PlanError:  a function's batches break a rule.
    """
    numbers = numbers or numbers_of(nodes, roots)
    plan = _plans_of_nodes.find((policy, numbers))
    if plan is None:
        by_position = policy, in_positions(numbers)
        plan = _plans_of_nodes.find(by_position)
        if plan is None:
            structure = structure_of(nodes, roots)
            plan = schedule_structure(structure, policy, lambda node: nodes[node].label())
            _plans_of_nodes.enter(by_position, plan)
        _plans_of_nodes.enter((policy, numbers), plan)
    return plan


def numbers_of(nodes: Sequence[Operation], roots: Sequence[Node] | None = None) -> bytes:
    """The 32-bit integers that a structure follows from: they take less time to list, hash and
    compare.

    The number of nodes; of each its signature; of each its index; of each the number of nodes that
    compute its inputs; and the indices of these, node after node. Then those of the roots, if
    there are any, and which result of its block each further result is.
    """
    inputs = [node.producers() if node.phase else node.inputs for node in nodes]
    signatures = [node.sig for node in nodes]
    numbers = [len(nodes), *signatures, *[node.index for node in nodes]]
    numbers += map(len, inputs)
    numbers += [x.index for read in inputs for x in read]
    if roots is not None:
        numbers += [len(roots), *[root.producer().index for root in roots]]
        if RESULT in signatures:
            numbers += [node.number for node in nodes if isinstance(node, BlockResult)]
    return array("i", numbers).tobytes()


def in_positions(numbers: bytes) -> bytes:
    """`numbers_of` nodes with their positions in place of indices, and -1 for all other nodes.

    Mini-batches of other trees have other indices, and often one structure.
    """
    values = np.frombuffer(numbers, np.int32)
    count = int(values[0])
    signatures, index, sizes = values[1 : 1 + 3 * count].reshape(3, count)
    start = 1 + 3 * count
    end = start + int(sizes.sum())
    num_roots = values[end : end + 1]
    after = end + 1 + int(num_roots.sum())
    read = np.concatenate([values[start:end], values[end + 1 : after]])
    order = np.argsort(index)
    nearest = order[np.searchsorted(index, read, sorter=order).clip(max=count - 1)]
    position = np.where(index[nearest] == read, nearest, -1)
    parts: list[Any] = [[-count], signatures, sizes, num_roots, position, values[after:]]
    return np.concatenate(parts).astype(np.int32).tobytes()


def schedule_structure(
    structure: Structure,
    policy: str | Policy,
    label: Callable[[int], str] = "node {}".format,
    as_read: bool = True,
) -> Plan:
    """The plan of a structure, cached.

    Args:
        label:   what an error calls the node at a position.
        as_read: whether each batch is put in the order of its reader; else it stays in the
            policy's, as calls do (see `call_batches`).
    """
    plan = _plans.find((policy, structure, as_read))
    if plan is None:
        plan = _validated(structure, policy, label)
        if as_read:
            plan = replace(plan, steps=tuple(ordered_for_readers(structure, plan.steps)))
        plan = _plans.enter((policy, structure, as_read), plan)
    return plan


def _validated(structure: Structure, policy: str | Policy, label: Callable[[int], str]) -> Plan:
    batches = function_of(policy)(structure)
    if not isinstance(batches, Iterable):
        raise PlanError(
            f"policy {policy_name(policy)!r} returned {batches!r}.\n"
            "  rule: a policy returns or yields batches, in order\n"
            "  fix:  yield structure.batch(nodes); see db.Policy"
        )
    plan = Plan(structure, tuple(batches), policy_name(policy))
    plan.validate(label)
    return plan


def ordered_for_readers(structure: Structure, steps: Sequence[BatchStep]) -> list[BatchStep]:
    """Order the nodes of each step as the first step that reads them does.

    The outputs of a step lie in memory in this order, so that the reader's packed input is a view
    of them and not a copy. Nodes that nothing reads keep the order of creation.
    """
    count, slots = len(structure), 1 + max(map(len, structure.inputs), default=0)
    # As one number: the step, the reader's input among its inputs, the reader within the step.
    first_read = [len(steps) * slots * count] * count
    ordered: list[BatchStep] = []
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        nodes = sorted(sorted(step.nodes), key=first_read.__getitem__)
        for position, node in enumerate(nodes):
            read = number * slots * count + position
            for source in structure.inputs[node]:
                if read < first_read[source]:
                    first_read[source] = read
                read += count
        ordered.append(BatchStep(step.signature, tuple(nodes)))
    return ordered[::-1]
