"""`Cost`: the seconds that a shard will take, from the lengths of its examples."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from dynbatch import random
from dynbatch.arguments import number, refused
from dynbatch.atomic import write_text
from dynbatch.backend import Array
from dynbatch.data_set import DataSet, indexed
from dynbatch.errors import DataError, problem_of
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.shards import balanced

Example = TypeVar("Example")

COUNT, REPEATS = 24, 3
"""Shards that `Cost.measured` takes, and how often it times each."""


@dataclass(frozen=True)
class Cost:
    """The cost of a shard, linear in what the lengths of its examples say of its work.

    With lengths n_ik of example i, one (K = 1) or several, such as source and target, a shard S of
    B examples costs
        fixed + sentence B + Σ_k token_k Σ_i n_ik + Σ_{j<=k} product_jk Σ_i n_ij n_ik
              + Σ_k longest_k max_i n_ik
    in seconds: nodes are made and gathered for each example, rows computed for each token, scores
    of attention for each pair of tokens, and a recurrence has the steps of its longest example,
    each a launch or more, however many take part.

    A cost is plain numbers >= 0, which all ranks must share, and a run keeps when it is resumed:
    `Cost.kept` gives them those of a file. Without arguments a token costs 1, and nothing else.

    Args:
        token:    for each token of each length.
        product:  for each pair: of two lengths, those of (0, 0), (0, 1) and (1, 1); () for none.
        longest:  for each token of the longest example; () for none.
        sentence: for each example.
        fixed:    for a shard that is not empty.

    Raises:
        ArgumentError: numbers of other lengths than K, K (K + 1) / 2 and K are given, or one that
            is negative, infinite or NaN.

    Example:
        >>> from dynbatch import parallel
        >>> cost = parallel.Cost(token=(2.0,), longest=(3.0,), fixed=1.0)
        >>> cost.of([5, 1])
        28.0
        >>> cost.shards([5, 1, 2, 2, 2], size=2)
        [[0], [1, 2, 3, 4]]
    """

    token: tuple[float, ...] = (1.0,)
    product: tuple[float, ...] = ()
    longest: tuple[float, ...] = ()
    sentence: float = 0.0
    fixed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sentence", "fixed"):
            number("Cost", name, getattr(self, name), "[0, inf)")
        count = len(self.token)
        for name, size in _sizes(count).items():
            numbers = [number("Cost", name, each, "[0, inf)") for each in getattr(self, name)]
            object.__setattr__(self, name, tuple(numbers))  # a list, as JSON gives it, too
            if len(numbers) not in (0, size):
                raise refused(
                    "Cost", f"{name} has {len(numbers)} numbers for {count} lengths",
                    f"{size} of them, or none", f"{name}=({', '.join(['0.0'] * size)},)",
                )  # fmt: skip

    @classmethod
    def fitted(cls, shards: Sequence[Any], seconds: Sequence[float]) -> Cost:
        """The cost that comes nearest to the measured seconds of shards, in relative terms.

        Least squares of predicted / measured - 1. Numbers that would be negative are left out, the
        most negative first.

        Args:
            shards:  (B,) or (B, K) lengths of each shard's examples.
            seconds: of each.
        """
        lengths = [_lengths(shard) for shard in shards]
        measured = np.asarray(seconds, np.float64)
        rows = np.array([_features(each) for each in lengths]) / measured[:, None]
        rates = iter(_least_squares(rows, np.ones(len(rows))).tolist())
        sentence, fixed = islice(rates, 2)
        sizes = _sizes(lengths[0].shape[1]).values()
        token, product, longest = [tuple(islice(rates, size)) for size in sizes]
        return cls(token, product, longest, sentence, fixed)

    @classmethod
    def measured(
        cls,
        step: Callable[[list[Example]], object],
        examples: DataSet[Example],
        lengths: Any,
        size: int,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Cost:
        """The cost of a model on this machine, from 24 shards, each timed three times.

        Shards hold a quarter to one and a half times `size` examples; every other one is of
        examples of like length. Each time they take turns in another order, as a machine gets
        slower and faster for seconds, and the least time of each counts. One rank measures, for
        all: see `kept`. Seeds of graphs are drawn as if nothing had been measured.

        Args:
            step:     step(shard) is timed: a graph, its loss and backward; on a GPU it waits. It
                leaves no gradients.
            examples: to draw shards from, some hundreds or more.
            lengths:  (N,) or (N, K) of each example.
            size:     examples in a shard, about.
            seed:     decides which examples are drawn.
            clock:    tells seconds.
        """
        examples = indexed("Cost", "examples", examples)
        all_lengths = _lengths(lengths)
        rng = np.random.default_rng(seed)
        drawn = _drawn(all_lengths, size, rng)
        seconds = np.full(len(drawn), np.inf)
        state = random.get_state()
        try:
            step([examples[i] for i in drawn[-1]])  # what is compiled and planned once
            for _ in range(REPEATS):
                for k in rng.permutation(len(drawn)).tolist():
                    shard = [examples[i] for i in drawn[k]]
                    begin = clock()
                    step(shard)
                    seconds[k] = min(seconds[k], clock() - begin)
        finally:
            random.set_state(state)
        return cls.fitted([all_lengths[places] for places in drawn], seconds.tolist())

    @classmethod
    def kept(
        cls,
        path: str | os.PathLike[str],
        measure: Callable[[], Cost],
        communicator: Communicator | None = None,
    ) -> Cost:
        """The cost that a file has, on all ranks; without the file, rank 0 measures and writes it.

        So a run that is resumed, or repeated, cuts as before. The file is an object of JSON.

        Args:
            path:         on rank 0; others do not look.
            measure:      measure() -> Cost, called on rank 0 while the others wait.
            communicator: joins the ranks; without it this process is alone.

        Raises:
            DataError: the file holds something else.
            OSError:   it cannot be read or written.

        Example:
            >>> import tempfile
            >>> from dynbatch.parallel import Cost
            >>> path = tempfile.mkdtemp() + "/cost.json"
            >>> Cost.kept(path, lambda: Cost(token=(2.0,), fixed=1.0))
            Cost(token=(2.0,), product=(), longest=(), sentence=0.0, fixed=1.0)
            >>> Cost.kept(path, lambda: Cost(token=(3.0,))).fixed
            1.0
        """
        communicator = communicator or Communicator()
        file = Path(path)
        cost = None
        if communicator.rank == 0 and file.exists():
            cost = _read(file)
        elif communicator.rank == 0:
            cost = measure()
            write_text(file, json.dumps(asdict(cost), indent=1))
        shared: Cost = communicator.broadcast_object(cost)
        return shared

    def cut(self, lengths: Callable[[Example], Any]) -> CutByCost[Example]:
        """Cuts mini-batches by this cost: `Trainer(shards=cost.cut(lengths))`.

        Args:
            lengths: lengths(example) -> its length, or K of them.

        Example:
            >>> from dynbatch.parallel import Cost
            >>> Cost(longest=(3.0,)).cut(len)(["abcde", "a", "ab", "ab", "ab"], 2)
            [[0], [1, 2, 3, 4]]
        """
        return CutByCost(self, lengths)

    def of(self, lengths: Any) -> float:
        """The predicted cost of one shard with examples of these (B,) or (B, K) lengths."""
        checked = self._checked(lengths)
        return float(self._rates() @ _features(checked)) if len(checked) else 0.0

    def shards(self, lengths: Any, size: int) -> list[list[int]]:
        """Cut examples of these (N,) or (N, K) lengths into shards of equal cost: `balanced`."""
        checked = self._checked(lengths)
        token, product, longest = self._parts()
        costs = self.sentence + checked @ token + _products(checked) @ product
        return balanced(costs, size, checked * longest if longest.any() else None)

    def _parts(self) -> list[Array]:
        sizes = _sizes(len(self.token))
        return [np.array(getattr(self, name) or (0.0,) * size) for name, size in sizes.items()]

    def _rates(self) -> Array:
        return np.concatenate([[self.sentence, self.fixed], *self._parts()])

    def _checked(self, lengths: Any) -> Array:
        checked = _lengths(lengths)
        if checked.shape[1] != len(self.token):
            raise refused(
                "Cost", f"lengths have the shape {np.shape(lengths)}",
                f"(N, {len(self.token)}): as many lengths an example as numbers in token",
                "give the lengths that it was fitted to",
            )  # fmt: skip
        return checked


@dataclass(frozen=True)
class CutByCost(Generic[Example]):
    """Cuts mini-batches into shards of equal cost; `Cost.cut` makes one.

    Args:
        cost:    of a shard.
        lengths: lengths(example) -> its length, or several.
    """

    cost: Cost
    lengths: Callable[[Example], Any]

    def __call__(self, batch: Sequence[Example], size: int) -> list[list[int]]:
        return self.cost.shards([self.lengths(example) for example in batch], size)

    def summary(self) -> dict[str, str]:
        """The numbers that decide the cuts, which a `Trainer` compares with ranks and files."""
        return {"cost of a shard": json.dumps(asdict(self.cost))}


def _read(path: Path) -> Cost:
    try:
        return Cost(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:  # other text, other names, other numbers
        raise DataError(
            f"{path}: not a cost of shards: {problem_of(error)}.\n"
            "  rule: an object of JSON with the numbers of parallel.Cost, as Cost.kept writes it\n"
            "  fix:  give another path; or remove the file, and the cost is measured anew"
        ) from error


def _sizes(count: int) -> dict[str, int]:
    """Counts of the numbers of a cost for so many lengths, by name."""
    return {"token": count, "product": count * (count + 1) // 2, "longest": count}


def _lengths(values: Any) -> Array:
    """(N, K) float64."""
    lengths = np.asarray(values, np.float64)
    return lengths[:, None] if lengths.ndim == 1 else lengths


def _products(lengths: Array) -> Array:
    """(N, K (K + 1) / 2): products of each two lengths of an example."""
    first, second = np.triu_indices(lengths.shape[1])
    products: Array = lengths[:, first] * lengths[:, second]
    return products


def _features(lengths: Array) -> Array:
    """The factors of a `Cost`'s numbers, for one shard, in the order of `_rates`."""
    sums = [lengths.sum(axis=0), _products(lengths).sum(axis=0), lengths.max(axis=0)]
    return np.concatenate([[len(lengths), 1.0], *sums])


def _least_squares(rows: Array, wanted: Array) -> Array:
    """Numbers >= 0 with rows · numbers near `wanted`."""
    numbers = np.zeros(rows.shape[1])
    scale = np.sqrt((rows * rows).sum(axis=0))
    left = np.flatnonzero(scale).tolist()
    while left:
        solution = np.linalg.lstsq(rows[:, left] / scale[left], wanted, rcond=1e-9)[0]
        if (solution >= 0).all():
            numbers[left] = solution / scale[left]
            break
        del left[int(solution.argmin())]
    return numbers


def _drawn(lengths: Array, size: int, rng: np.random.Generator) -> list[Array]:
    """Places of the examples of each shard that is measured."""
    by_length = lengths.sum(axis=1).argsort(kind="stable")
    count = len(lengths)
    drawn = []
    for k in range(COUNT):
        number = min(count, max(1, round(size * (0.25 + 1.25 * (k // 2) / (COUNT // 2 - 1)))))
        if k % 2:
            drawn.append(rng.choice(count, number, replace=False))
        else:
            begin = int(rng.integers(count - number + 1))
            drawn.append(by_length[begin : begin + number])
    return drawn
