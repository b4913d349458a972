"""`structure_of_runs`: the structure that the nodes of several runs would have had in one run."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from dynbatch.batcher.schedule.plan import Structure
from dynbatch.cells.calls.region_node import RegionNode
from dynbatch.nodes.operation import signature_parts, signature_type


def structure_of_runs(numbers: Sequence[bytes]) -> Structure:
    """The nodes of all runs as one structure. Regions of one phase are one node, of a signature of
    their own (`joined_signature`): calls wait for all that calls of their phase read.

    Args:
        numbers: `schedule.numbers_of` the nodes of each run.
    """
    signatures: dict[int, int] = {}  # by index, or by joined signature
    inputs: dict[int, list[int]] = {}
    joined: dict[int, int] = {}  # of each region's index
    phases: dict[int, int] = {}
    for signature, index, read in _nodes(numbers):
        read = [joined.get(i, i) for i in read]
        if signature_type(signature) is RegionNode:
            joined[index] = index = signature = joined_signature(signature)
            phases[index] = -1 - signature
            read = [i for i in read if i != index]
        elif index in signatures:
            continue  # it ran again, to have a value of its own
        else:
            phases[index] = max([phases.get(i, 0) for i in read], default=0)
        signatures[index] = signature
        inputs.setdefault(index, []).extend(read)
    order = sorted(signatures, key=lambda index: (phases[index], index >= 0))
    position = {index: rank for rank, index in enumerate(order)}
    return Structure(
        tuple([signatures[index] for index in order]),
        tuple([tuple([position[i] for i in inputs[index] if i in position]) for index in order]),
    )


def joined_signature(signature: int) -> int:
    """The signature that all regions of a phase have, a negative integer."""
    return -1 - int(dict(signature_parts(signature))["phase"])


def _nodes(numbers: Sequence[bytes]) -> Iterator[tuple[int, int, list[int]]]:
    for of_run in numbers:
        count, *rest = array("i", of_run)
        signatures, indices, counts = (rest[k * count : (k + 1) * count] for k in range(3))
        read = iter(rest[3 * count :])
        for signature, index, length in zip(signatures, indices, counts, strict=True):
            yield signature, index, [next(read) for _ in range(length)]
