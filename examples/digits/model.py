"""Convolutions, batch norm and the maximum over all pixels, for images of any sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dynbatch import Graph, Node, models
from dynbatch import nodes as F
from dynbatch.backend import Array

CLASSES = 10
SMALLEST = 4
"""Pixels of a side that two pools leave one of."""


class DigitReader(models.Module):
    """Scores of the ten digits, from images (H, W) of ink.

    Three convolutions of 3 × 3 pixels have a batch norm and a relu behind them; after the first
    two, pools halve height and width. The maximum of each channel over all pixels is left, (C,),
    whatever the image's size, and a linear map makes scores of it.

    Args:
        channels: of the first convolution; the second and third have twice and four times as many.
        dropout:  of the maxima.
    """

    def __init__(self, channels: int, dropout: float) -> None:
        widths = [1, channels, 2 * channels, 4 * channels]
        pairs = list(pairwise(widths))
        # A bias would vanish in the batch norm, which subtracts the mean.
        self.convolutions = [models.Conv2d(i, o, 3, padding=1, bias=False) for i, o in pairs]
        self.norms = [models.BatchNorm(width) for width in widths[1:]]
        self.dropout = models.Dropout(dropout)
        self.output = models.Linear(widths[-1], CLASSES)

    def scores(self, graph: Graph, images: Sequence[Array]) -> list[Node]:
        """Scores (10,) of each image of a mini-batch.

        Args:
            images: (H, W) float32 of `SMALLEST` pixels a side or more.
        """
        xs = [F.input(graph, image[:, :, None]) for image in images]
        for layer, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            if layer:
                xs = [F.max_pool2d(x, 2) for x in xs]
            xs = [F.relu(x) for x in norm(graph, [convolve(x) for x in xs])]
        maxima = [F.max(F.reshape(x, (-1, x.width)), dim=0) for x in xs]
        return [self.output(self.dropout(maximum)) for maximum in maxima]
