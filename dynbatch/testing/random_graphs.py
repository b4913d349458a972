"""Random graphs, each written by its seed, and a run of many under every policy:

    python -m dynbatch.testing.random_graphs --graphs 10000

Prints the seed of each graph whose numbers differ, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from dynbatch.batcher.schedule.policies import POLICIES
from dynbatch.testing.policies import check_limits, check_policies, check_sentences
from dynbatch.testing.random_graph import JOINS, OPERATIONS, TAILS, UNREAD, RandomGraph
from dynbatch.testing.random_program import PARAMETERS, Function, Instruction, RandomSentence

T = TypeVar("T")


class Choose(Protocol):
    """Takes one of several: at random, or as hypothesis wants it."""

    def __call__(self, options: Sequence[T], /) -> T: ...


MANY = 1100
"""Sentences of a large graph: batches of more than 1,024 nodes."""


def write(
    choose: Choose,
    functions: Sequence[Function] = (),
    most_instructions: int = 12,
    operations: Sequence[str] = tuple(OPERATIONS),
    count: int = 0,
) -> RandomGraph:
    """A graph of a few sentences that run one or two programs; `choose` decides on everything."""
    names = [*operations, *["call"] * (len(operations) if functions else 0)]

    def program() -> tuple[Instruction, ...]:
        return tuple(
            [
                Instruction(
                    choose(names), choose(range(64)), choose(range(64)), choose([0.5, -1.5, 2.0])
                )
                for _ in range(choose(range(1, most_instructions + 1)))
            ]
        )

    programs = [program() for _ in range(choose([1, 2]))]
    # Lengths 0 and 1 come more often than others.
    sentences = [
        RandomSentence(choose([0, 1, 0, 1, 2, 3, 4]), choose(programs))
        for _ in range(choose([1, 2, 3, 4]))
    ]
    return RandomGraph(
        sentences=tuple(sentences),
        count=count,
        reads=0 if count else choose([0, 0, 1, 3]),
        tail=choose(TAILS),
        backwards=choose([1, 1, 1, 2]),
        frozen=frozenset([choose(sorted(PARAMETERS)) for _ in range(choose([0, 1, 2, 3]))]),
        functions=tuple(functions),
        seed=choose(range(2**32)),
        joins=choose(tuple(JOINS)),
        unread=tuple([choose(tuple(UNREAD)) for _ in range(choose([0, 1, 1, 2]))]),
    )


def draw(seed: int, **options: Any) -> RandomGraph:
    """The random graph of a seed, the same on every machine; `options` are those of `write`.

    Example:
        >>> from dynbatch.testing import check_policies
        >>> check_policies(draw(0))
    """
    generator = np.random.default_rng(seed)

    def choose(candidates: Sequence[T]) -> T:
        return candidates[int(generator.integers(len(candidates)))]

    return write(choose, **options)


def check(seed: int, policies: Sequence[str] = tuple(POLICIES)) -> None:
    """Check the graph of a seed: its policies, its cells as functions, and its sentences alone.

    Every 200th has 1,100 sentences, every 4th is run with sentences left out or in other orders,
    and every 4th within less memory.

    Raises:
        AssertionError: two numbers differ by more than rounding.
    """
    if seed % 200 == 100:
        check_sentences(draw(seed, count=MANY, most_instructions=3), (), policies, together=25)
        return
    graph = draw(seed)
    # The mask depends on what the nodes before it are, and on which came first of equal ones.
    drops = "dropout" in {i.operation for s in graph.sentences for i in s.program}
    check_policies(graph, (), policies, inlined=not drops)
    if seed % 4 == 1 and not drops:
        check_sentences(graph, (), policies)
    if seed % 4 == 3:
        check_limits(graph, (), policies)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check many graphs; how many failed. An interrupt ends it with what was found so far.

    Raises:
        SystemExit: the arguments are wrong.
    """
    from tqdm import tqdm

    parser = argparse.ArgumentParser(
        prog="python -m dynbatch.testing.random_graphs", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--graphs", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has one more")
    parser.add_argument("--policy", choices=["all", *POLICIES], default="all")
    options = parser.parse_args(arguments)
    policies = tuple(POLICIES) if options.policy == "all" else (options.policy,)
    failed: list[int] = []
    checked = 0
    try:
        for seed in tqdm(
            range(options.seed, options.seed + options.graphs), unit="graph", disable=None
        ):
            try:
                check(seed, policies)
            except Exception as error:
                failed.append(seed)
                tqdm.write(
                    f"seed {seed}: {type(error).__name__}: {error}\n  again: {parser.prog} "
                    f"--graphs 1 --seed {seed} --policy {options.policy}"
                )
            checked += 1
    except KeyboardInterrupt:
        print("interrupted")
    print(f"{checked} graphs under {', '.join(policies)}: {len(failed)} failed {failed or ''}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
