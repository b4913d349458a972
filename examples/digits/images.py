"""Images cropped to their ink and drawn anew at sizes of their own."""

from __future__ import annotations

import numpy as np

from dynbatch.backend import Array
from examples.corpora.digits import Digit

HEIGHTS = (9, 18)
"""The least height in pixels, and the first that is too large."""

STRETCH = 0.1
"""The width changes by up to this share of it, beside the height."""

LEAST_WIDTH = 4


def cropped(image: Array) -> Array:
    """The rows and columns from the first with ink to the last; an image without ink as it is."""
    rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
    if not rows.size:
        return image
    return image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def resized(image: Array, height: int, width: int) -> Array:
    """The image at another size, (H, W) -> (height, width): bilinear between pixels' centres."""
    return _along(_along(image, height).T, width).T


def _along(image: Array, size: int) -> Array:
    """The rows of an image at another number."""
    places = np.clip((np.arange(size) + 0.5) * len(image) / size - 0.5, 0, len(image) - 1)
    below = places.astype(np.int64)
    above = np.minimum(below + 1, len(image) - 1)
    share = (places - below).astype(image.dtype)[:, None]
    between: Array = image[below] * (1 - share) + image[above] * share
    return between


def drawn(digit: Digit, rng: np.random.Generator) -> Digit:
    """The digit cropped to its ink, at a height and a width that `rng` draws."""
    image = cropped(digit.image)
    height = int(rng.integers(*HEIGHTS))
    ratio = image.shape[1] / image.shape[0] * rng.uniform(1 - STRETCH, 1 + STRETCH)
    width = max(LEAST_WIDTH, round(height * ratio))
    return Digit(np.ascontiguousarray(resized(image, height, width)), digit.label)
