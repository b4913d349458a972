"""Mini-batches of sentences, shuffled anew every epoch, by sentences or by tokens.

Nothing is padded, so nothing is gained by sorting: sentences of any lengths share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from dynbatch.arguments import refused
from dynbatch.backend import Array
from dynbatch.data_set import DataSet, LazySequence, indexed
from dynbatch.errors import EmptyBatchError, ShapeError
from dynbatch.train.digest import data_digest

Example = TypeVar("Example")

_WORD = (1 << 64) - 1


def epoch_order(num_examples: int, seed: int, epoch: int) -> Array:
    """The order of the examples in one epoch: a permutation that depends on its arguments alone.

    A resumed run therefore needs the epoch's number and no generator state. The raw stream of
    NumPy's Philox, keyed by (seed, epoch), is sorted: NumPy promises that stream for good, while
    `Generator.permutation` may change from one version to the next.

    Args:
        seed, epoch: any integers, taken modulo 2^64.

    Returns:
        (num_examples,) int64.

    Example:
        >>> order = epoch_order(4, seed=0, epoch=1)
        >>> sorted(order.tolist()), bool((order == epoch_order(4, seed=0, epoch=1)).all())
        ([0, 1, 2, 3], True)
    """
    stream = np.random.Philox(key=epoch_key(seed, epoch)).random_raw(num_examples)
    return np.argsort(stream, kind="stable")


def epoch_key(seed: int, epoch: int) -> Array:
    """The key of an epoch's streams of NumPy's Philox: two 64-bit words."""
    return np.array([int(seed) & _WORD, int(epoch) & _WORD], np.uint64)


class ShuffledBatches(Generic[Example]):
    """Base of batches of examples that have places; `indices` says which are together."""

    def __init__(self, examples: DataSet[Example], seed: int, limit: str, most: int) -> None:
        name = type(self).__name__
        self.examples = indexed(name, "examples", examples)
        self.seed = int(seed)
        if not len(self.examples):
            raise EmptyBatchError(
                f"{name}: there are no examples.\n"
                "  rule: an epoch holds at least one example\n"
                "  fix:  check the file or filter that they come from."
            )
        if most < 1:
            raise EmptyBatchError(
                f"{name}: {limit} is {most}, so every batch would be empty.\n"
                f"  rule: {limit} >= 1\n"
                f"  fix:  give {limit} a positive number."
            )

    def epoch(self, epoch: int) -> LazySequence[list[Example]]:
        """All batches of one epoch, each read when it is taken: every example exactly once."""
        batches, examples = self.indices(epoch), self.examples
        return LazySequence(batches, lambda batch: [examples[index] for index in batch])

    def indices(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch by their examples' places in the list."""
        raise NotImplementedError(f"{type(self).__name__}.indices")


class SentenceBatches(ShuffledBatches[Example]):
    """Batches of `batch_size` examples each; the last of an epoch holds what is left.

    Args:
        examples:   any objects by their places: a list, an array, a data set of PyTorch's. It is
                    kept as it is, and an example is read when its mini-batch is taken.
        batch_size: sentences in a batch, at least 1.
        seed:       with the epoch's number, decides the order.

    `len(batches)` is the number of batches in an epoch.

    Raises:
        ArgumentError:   `examples` has keys and not places (a dict), or gives one after the other
            (a generator).
        EmptyBatchError: there are no examples, or `batch_size` is below 1.

    Example:
        >>> batches = SentenceBatches(["a", "b", "c"], batch_size=2)
        >>> len(batches), [len(batch) for batch in batches.epoch(0)]
        (2, [2, 1])
    """

    def __init__(self, examples: DataSet[Example], batch_size: int, seed: int = 0) -> None:
        self.batch_size = int(batch_size)
        super().__init__(examples, seed, "batch_size", self.batch_size)

    def __len__(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def num_batches(self, epoch: int) -> int:
        """Number of batches in an epoch; here the same in all of them."""
        return len(self)

    def summary(self) -> dict[str, int | str]:
        """The settings that decide every batch, and a digest of the examples (`data_digest`).

        A `Trainer` keeps the summary in checkpoints, and refuses to resume with another.
        """
        return {
            "number of examples": len(self.examples),
            "digest of the examples": data_digest(self.examples),
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def indices(self, epoch: int) -> list[list[int]]:
        order = epoch_order(len(self.examples), self.seed, epoch).tolist()
        size = self.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]


class TokenBatches(ShuffledBatches[Example]):
    """Batches of at most `max_tokens` tokens: long sentences come in few, short ones in many.

    The shuffled examples are taken in order; a batch is closed when the next one would not fit.
    An example longer than `max_tokens` is a batch of its own.

    Args:
        examples:   any objects by their places: a list, an array, a data set of PyTorch's. It is
                    kept as it is, and an example is read when its mini-batch is taken.
        max_tokens: tokens in a batch, at least 1.
        length:     the tokens of one example, 0 or more; called once for each, at first. Or the
                    tokens of each, a list, an array or a column, so that no example is read for it.
        seed:       with the epoch's number, decides the order.

    Raises:
        ArgumentError:   `examples` has keys and not places, or gives one after the other; `length`
            is neither a function nor whole numbers.
        EmptyBatchError: there are no examples, or `max_tokens` is below 1.
        ShapeError:      `length` gives a negative number, or has not as many as there are examples.

    Example:
        >>> batches = TokenBatches(["aaa", "b", "cc", "dddddd"], max_tokens=4)
        >>> max(sum(map(len, batch)) for batch in batches.epoch(0) if len(batch) > 1) <= 4
        True
    """

    def __init__(
        self,
        examples: DataSet[Example],
        max_tokens: int,
        length: Callable[[Any], int] | DataSet[int] = len,
        seed: int = 0,
    ) -> None:
        self.max_tokens = int(max_tokens)
        super().__init__(examples, seed, "max_tokens", self.max_tokens)
        if callable(length):
            self.lengths = [int(length(example)) for example in self.examples]
        else:
            self.lengths = _whole_numbers(length, len(self.examples))
        if min(self.lengths) < 0:
            index = self.lengths.index(min(self.lengths))
            raise ShapeError(
                f"TokenBatches: example {index} has length {self.lengths[index]}.\n"
                "  rule: length(example) >= 0\n"
                "  fix:  give the number of tokens of one example."
            )

    def num_batches(self, epoch: int) -> int:
        """Number of batches in an epoch; it varies a little with the order."""
        return len(self.indices(epoch))

    def summary(self) -> dict[str, int | str]:
        """The settings that decide every batch, and a digest of the lengths."""
        return {
            "number of examples": len(self.examples),
            "digest of the examples": data_digest(self.examples),
            "digest of their lengths": data_digest(self.lengths),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }

    def indices(self, epoch: int) -> list[list[int]]:
        batches: list[list[int]] = []
        room = -1
        for index in epoch_order(len(self.examples), self.seed, epoch).tolist():
            if not batches or self.lengths[index] > room:
                batches.append([])
                room = self.max_tokens
            batches[-1].append(index)
            room -= self.lengths[index]
        return batches


def _whole_numbers(lengths: DataSet[int], count: int) -> list[int]:
    """The lengths of so many examples, known beforehand."""
    values = list(indexed("TokenBatches", "length", lengths))
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths, such as the examples themselves
        array = np.array([None])
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise refused(
            "TokenBatches", f"length has {array.dtype} of {array.ndim} dimensions",
            "length(example), or a whole number for each example",
            "length=len, or np.diff(offsets) of examples that lie in one array",
        )  # fmt: skip
    if len(array) != count:
        raise ShapeError(
            f"TokenBatches: {len(array)} lengths for {count} examples.\n"
            "  rule: one length for each example\n"
            "  fix:  count them anew, with the examples that there are now."
        )
    numbers: list[int] = array.tolist()
    return numbers


def padded_tokens(lengths: Sequence[int]) -> int:
    """Tokens of a batch that is padded to its longest sentence, B · max_i T_i."""
    if len(lengths) == 0:
        raise EmptyBatchError("padded_tokens: no lengths. A batch holds at least one sentence.")
    return len(lengths) * int(max(lengths))


def padding_ratio(lengths: Sequence[int]) -> float:
    """Work of a padded batch as a multiple of the useful work: B · max_i T_i / Σ_i T_i, at least 1.

    1.0 for a batch in which every sentence is empty: nothing to pad.

    Raises:
        EmptyBatchError: `lengths` is empty.

    Example:
        >>> padding_ratio([2, 4, 6])
        1.5
    """
    padded = padded_tokens(lengths)
    return padded / int(sum(lengths)) if padded else 1.0
