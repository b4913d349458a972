"""What a mini-batch would hold padded, planned and not run: for a trainer's metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynbatch import nodes as F
from dynbatch.graph import Graph
from dynbatch.models.module import Module
from dynbatch.padding.padded_model import Example, Longest, Loss, twin_of


def padded_peak(
    model: Module,
    loss: Loss,
    pad: Callable[[Example, Longest], Sequence[Any]] | None = None,
    padded_loss: Loss | None = None,
) -> Callable[[Sequence[Example]], int]:
    """A function from the examples of a mini-batch to the peak bytes of its padded step.

    The padded graph is built and planned, and no kernel is run: some per cent of a step's time on
    the CPU. `Trainer(padded_bytes=...)` takes the function.

    Args:
        loss, pad, padded_loss: as `compare_padding` takes them.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.padding import Tagger, padded_peak
        >>> model = Tagger(vocabulary=9, tags=3, embed=4, hidden=4)
        >>> padded_bytes = padded_peak(model, model.loss)
        >>> short, long = ([1], [2]), ([1] * 50, [2] * 50)
        >>> padded_bytes([short, long]) == padded_bytes([long, long])
        True
    """
    twin = twin_of(model, loss, pad, padded_loss)

    def peak(examples: Sequence[Example]) -> int:
        given = [example if isinstance(example, tuple) else (example,) for example in examples]
        first = model.parameters()[0]
        with Graph(first.device, first.dtype, seed=0) as graph:
            losses = [twin.loss(graph, *example) for example in twin.batch(given)]
            use = graph.estimate(F.mean(losses))
        return use.peak_bytes

    return peak
