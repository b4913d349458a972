"""Plans the memory of a padded mini-batch, without running it, for a trainer's metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynbatch import nodes as F
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.module import Module
from dynbatch.named_parameters import graph_dtype
from dynbatch.padding.padded_model import Example, Loss, Pad, pad_model, parts_of


def padded_peak(
    model: Module,
    loss: Loss,
    pad: Pad | None = None,
    padded_loss: Loss | None = None,
    precision: str = FULL,
) -> Callable[[Sequence[Example]], int]:
    """A function that takes the examples of a mini-batch and plans the peak of its padded step.

    It builds and plans the padded graph and runs no kernel, which takes some per cent of a step's
    time on the CPU. `Trainer(padded_bytes=...)` takes the function.

    Args:
        loss, pad, padded_loss, precision: as `compare_padding` takes them.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.padding import Tagger, padded_peak
        >>> model = Tagger(vocabulary=9, tags=3, embed=4, hidden=4)
        >>> padded_bytes = padded_peak(model, model.loss)
        >>> short, long = ([1], [2]), ([1] * 50, [2] * 50)
        >>> padded_bytes([short, long]) == padded_bytes([long, long])
        True
    """
    padded = pad_model(model, loss, pad, padded_loss)

    def peak(examples: Sequence[Example]) -> int:
        first = model.parameters()[0]
        dtype = graph_dtype(model.parameters())
        with Graph(first.device, dtype, seed=0, precision=precision) as graph:
            batch = padded.batch([parts_of(example) for example in examples])
            losses = [padded.loss(graph, *example) for example in batch]
            use = graph.estimate(F.mean(losses))
        return use.peak_bytes

    return peak
