"""`spread`: a function of many examples, of which every rank computes a share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from dynbatch.arguments import function as require_function
from dynbatch.arguments import refused
from dynbatch.data_set import DataSet, indexed
from dynbatch.parallel.agreement import require_equal
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.shards import balanced

Example = TypeVar("Example")
Output = TypeVar("Output")


def spread(
    communicator: Communicator,
    examples: DataSet[Example],
    function: Callable[[list[Example]], Sequence[Output]],
    costs: Sequence[float] | None = None,
) -> list[Output]:
    """The outputs of a function of many examples, in their order, on all ranks.

    Each rank calls function(examples) -> outputs once, with its share of the examples in their
    order, or not at all where it has none; outputs are pickled to the other ranks.

    Args:
        examples: the same on all ranks, each of which reads its share.
        function: takes a list of examples, and returns an output for each; such as
            `lambda part: db.predict(model, model.logits, part)`. What it gives for an example must
            not depend on the others, nor on a draw.
        costs:    of each example, >= 0, such as its tokens: shares are of equal cost. Without them,
            of equal numbers. The same on all ranks.

    Raises:
        ArgumentError: `examples` has keys and not places, or there are more or fewer costs than
            examples, or outputs than examples.
        ParallelError: the examples of ranks are not as many, or costs differ; the
            function failed on another rank, where it is called `with communicator:`.

    Example:
        >>> from dynbatch import parallel
        >>> with parallel.connect() as communicator:
        ...     parallel.spread(communicator, ["a", "bb"], lambda part: [len(x) for x in part])
        [1, 2]
    """
    require_function("spread", "function", function, "function(examples) -> outputs")
    items = indexed("spread", "examples", examples)
    if costs is not None and len(costs) != len(items):
        raise refused(
            "spread", f"{len(costs)} costs for {len(items)} examples", "a cost for each example",
            "costs=[len(example) for example in examples]",
        )  # fmt: skip
    shards = balanced([1.0] * len(items) if costs is None else costs, communicator.size)
    places = shards[communicator.rank]
    outputs = list(function([items[number] for number in places])) if places else []
    if len(outputs) != len(places):
        raise refused(
            "spread", f"function returned {len(outputs)} outputs for {len(places)} examples",
            "an output for each example, in their order", "return one, or None, for each",
        )  # fmt: skip
    digest = blake2b(repr(shards).encode(), digest_size=8).hexdigest()
    same = {"number of examples": len(items), "digest of shares": digest}
    notes = communicator.gather_objects((same, outputs))
    require_equal(
        "spread", [each for each, _ in notes], "all ranks have the same examples and costs",
        "give the same lists on all ranks; communicator.broadcast_object(costs), where they are\n"
        "        measured",
    )  # fmt: skip
    gathered: dict[int, Any] = {}
    for shard, (_, part) in zip(shards, notes, strict=True):
        gathered |= zip(shard, part, strict=True)
    return [gathered[number] for number in range(len(items))]
