"""Arguments of one sentence of a given length, for the rows of `tests/node_cases.py`.

Floating-point arrays become nodes there; whole numbers stay arrays.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Generator = np.random.Generator


def matrix(generator: Generator, length: int) -> tuple[Any, ...]:
    return (generator.standard_normal((length, 4)),)


def image(generator: Generator, length: int) -> tuple[Any, ...]:
    """An image of one pixel or more; the higher, the narrower."""
    return (generator.standard_normal((max(1, length), 1 + 7 // (length + 1), 4)),)


def larger_image(generator: Generator, length: int) -> tuple[Any, ...]:
    """An image of 3 × 3 pixels or more."""
    return (generator.standard_normal((3 + length, 3 + 7 // (length + 1), 4)),)


def positive(generator: Generator, length: int) -> tuple[Any, ...]:
    return (generator.uniform(0.5, 2.0, (length, 4)),)


def vector(generator: Generator, length: int) -> tuple[Any, ...]:
    return (generator.standard_normal(4),)


def vector_and_ids(generator: Generator, length: int) -> tuple[Any, ...]:
    return (generator.standard_normal(4), generator.integers(0, 4, 1))


def scalars(generator: Generator, length: int) -> tuple[Any, ...]:
    return tuple([generator.standard_normal(()) for _ in range(length + 1)])


def pair(generator: Generator, length: int) -> tuple[Any, ...]:
    return (*matrix(generator, length), *matrix(generator, length))


def pair_of_positives(generator: Generator, length: int) -> tuple[Any, ...]:
    return (*matrix(generator, length), *positive(generator, length))


def matrix_and_vector(generator: Generator, length: int) -> tuple[Any, ...]:
    return (*matrix(generator, length), *vector(generator, length))


def matrix_and_column(generator: Generator, length: int) -> tuple[Any, ...]:
    return (*matrix(generator, length), generator.standard_normal((length, 1)))


def product(generator: Generator, length: int) -> tuple[Any, ...]:
    """A (T, 4) and a (4, 3) matrix."""
    return (*matrix(generator, length), generator.standard_normal((4, 3)))


def products_by_head(generator: Generator, length: int) -> tuple[Any, ...]:
    """(H, T, 4) and (H, S, 4), with other H and S in other sentences, and a (4, 3) matrix."""
    heads = 1 + length % 3
    shapes = ((heads, length, 4), (heads, 2 * length, 4), (4, 3))
    return tuple([generator.standard_normal(shape) for shape in shapes])


def query_and_memory(generator: Generator, length: int) -> tuple[Any, ...]:
    """Two queries, and as many keys and values as tokens."""
    shapes = ((2, 4), (length, 4), (length, 6))
    return tuple([generator.standard_normal(shape) for shape in shapes])


def grouped_memory(generator: Generator, length: int) -> tuple[Any, ...]:
    """Three queries of four heads, and keys and values of two."""
    shapes = ((3, 8), (length, 4), (length, 2))
    return tuple([generator.standard_normal(shape) for shape in shapes])


def memory_and_bias(generator: Generator, length: int) -> tuple[Any, ...]:
    """`grouped_memory`, and a number for each pair; of odd lengths, for each head and pair."""
    bias = generator.standard_normal((4, 3, length) if length % 2 else (3, length))
    return (*grouped_memory(generator, length), bias)


def memory_and_features(generator: Generator, length: int) -> tuple[Any, ...]:
    """`grouped_memory`, and a feature from 0 to 4 of each pair."""
    return (*grouped_memory(generator, length), generator.integers(0, 5, (3, length)))


def gated_rows(generator: Generator, length: int) -> tuple[Any, ...]:
    """Queries, keys, values, log gates and strengths of two heads."""
    rows = [generator.standard_normal((length, width)) for width in (6, 6, 4)]
    gates = generator.uniform(-1.0, 0.0, (length, 2)), generator.uniform(0.0, 1.0, (length, 2))
    return (*rows, *gates)


def two_sentences(generator: Generator, length: int) -> tuple[Any, ...]:
    """Queries of one sentence, more or fewer than the keys of another."""
    return (generator.standard_normal((length % 5 + 1, 4)), *matrix(generator, length))


def two_with_words(generator: Generator, length: int) -> tuple[Any, ...]:
    """Two sentences with at least one key."""
    return two_sentences(generator, max(1, length))


def choices(generator: Generator, length: int) -> tuple[Any, ...]:
    """A query for each token, one more key, and what is chosen; some of it is ignored."""
    shapes = ((length, 3), (length + 1, 3))
    targets = generator.integers(0, length + 1, length)
    targets[2:3] = -100
    return (*[generator.standard_normal(shape) for shape in shapes], targets)


def some_memory(generator: Generator, length: int) -> tuple[Any, ...]:
    """A memory with at least one key: without any PyTorch gives NaN, dynbatch zeros."""
    return query_and_memory(generator, max(1, length))


def matrix_and_ids(generator: Generator, length: int) -> tuple[Any, ...]:
    """Class numbers below 4, some of them ignored."""
    ids = generator.integers(0, 4, length)
    ids[generator.random(length) < 0.3] = -100
    return (*matrix(generator, length), ids)


def chances(ids: Any, classes: int) -> np.ndarray:
    """A distribution for each class number: most of it there, except where it is ignored."""
    ids = np.asarray(ids)
    p = np.full((ids.size, classes), 0.25 / classes)
    counts = np.flatnonzero(ids >= 0)
    p[counts, ids[counts]] += 0.75
    return p


def emissions_and_tags(generator: Generator, length: int) -> tuple[Any, ...]:
    """Scores of 4 tags, and tags of which none is ignored."""
    return (*matrix(generator, length), generator.integers(0, 4, length))


def frames_and_labels(generator: Generator, length: int) -> tuple[Any, ...]:
    """Scores of 4 classes, and so few labels that frames can spell them; equal ones are parted."""
    return (*matrix(generator, length), generator.integers(1, 4, (length + 1) // 2))


def emissions_and_segments(generator: Generator, length: int) -> tuple[Any, ...]:
    """Scores of 2 labels for segments of 1 and 2 tokens, and a segmentation."""
    segments = [(2, t % 4 // 2) for t in range(0, length - 1, 2)] + [(1, 1)] * (length % 2)
    return (*matrix(generator, length), np.array(segments, np.int64).reshape(-1, 2))


def ids(generator: Generator, length: int) -> tuple[Any, ...]:
    return (generator.integers(0, 7, length),)


def matrix_and_rows(generator: Generator, length: int) -> tuple[Any, ...]:
    """Numbers of rows, with repetitions; none for an empty sentence."""
    rows = generator.integers(0, length, 2 * length) if length else np.zeros(0, np.int64)
    return (*matrix(generator, length), rows)


def matrix_and_segments(generator: Generator, length: int) -> tuple[Any, ...]:
    """Lengths of segments of the rows, of which some have none."""
    cuts = np.sort(generator.integers(0, length + 1, 3))
    return (*matrix(generator, length), np.diff(np.concatenate(([0], cuts, [length]))))


def matrix_and_labels(generator: Generator, length: int) -> tuple[Any, ...]:
    """Targets that are exactly 0 or 1; integers, so that they arrive as an array."""
    return (*matrix(generator, length), generator.integers(0, 2, (length, 4)))


def at_least(tokens: int) -> Callable[[Generator, int], tuple[Any, ...]]:
    """A matrix of at least so many tokens."""
    return lambda generator, length: matrix(generator, max(tokens, length))
