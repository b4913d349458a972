"""A convolutional network over the words of one sentence, of any length."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch import arguments
from dynbatch import nodes as F
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Dropout, Linear
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node


class TextCNN(Module):
    """Scores of classes from the strongest answer of each filter anywhere in the sentence:

        y = W [max_t relu(W_s [x_t; …; x_t+s-1] + b_s) for each window size s] + b

    Windows reach over both ends, where tokens are zeros, so that a sentence shorter than a window,
    or of no token, has some. (Theirs is padded to the longest sentence.)

    Args:
        input_size:  D, features of a token.
        num_classes: K.
        sizes:       tokens in a window, each 2 or more.
        filters:     filters of each size.
        dropout:     of the filters' answers.
        rng:         generator or seed of the initial values.

    Parameters: filters.N.weight (filters, s · D) and filters.N.bias; project.weight (K, filters ·
        sizes) and project.bias.
    Source: Kim 2014, arXiv:1408.5882.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> classify = models.TextCNN(8, num_classes=3)
        >>> with db.Graph() as graph:
        ...     [classify(F.constant(graph, 1.0, (length, 8))).shape for length in (40, 1, 0)]
        [(3,), (3,), (3,)]
    """

    def __init__(
        self, input_size: int, num_classes: int, sizes: Sequence[int] = (3, 4, 5),
        filters: int = 100, dropout: float = 0.5, *, rng: Rng = None,
    ) -> None:  # fmt: skip
        arguments.sizes(
            self, input_size=input_size, num_classes=num_classes, filters=filters
        )  # fmt: skip
        self.sizes = _windows(sizes)
        rng = generator(rng)
        self.filters = [Linear(size * input_size, filters, rng=rng) for size in self.sizes]
        self.project = Linear(filters * len(self.sizes), num_classes, rng=rng)
        self.dropout = Dropout(dropout)

    def __call__(self, x: Node) -> Node:
        """Scores (K,) of a sentence x (T, D)."""
        answers = []
        for size, layer in zip(self.sizes, self.filters, strict=True):
            windows = F.windows(x, size, padding=size - 1)  # (T + size - 1, size · D)
            answers.append(F.max(F.relu(layer(windows)), dim=0))
        return self.project(self.dropout(F.concat(answers)))


def _windows(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, list | tuple | range) or not sizes:
        raise arguments.refused(
            "TextCNN", f"sizes is {sizes!r}", "a list of at least one window's tokens",
            "sizes=(3, 4, 5)",
        )  # fmt: skip
    return tuple([arguments.size("TextCNN", f"sizes[{k}]", size) for k, size in enumerate(sizes)])
