"""ListOps: nested operations on lists of digits, as prefix expressions, drawn anew.

    [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

The published set is one random draw of this generator, 90,000 expressions to train and 10,000 to
test. Ours is another, so figures compare in style, not example by example.

Source: Nangia & Bowman 2018, ListOps: a diagnostic dataset for latent tree learning,
    arXiv:1804.06028; probabilities, numbers of arguments and depth are those of their generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

OPERATOR_SHARE, MOST_ARGUMENTS, MOST_DEPTH = 0.25, 5, 20


def _median(digits: list[int]) -> int:
    """Rounded down where two digits lie in the middle."""
    ordered, half = sorted(digits), len(digits) // 2
    return ordered[half] if len(digits) % 2 else (ordered[half - 1] + ordered[half]) // 2


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda digits: sum(digits) % 10,
}
DIGITS, END = tuple("0123456789"), "]"
TOKENS = (*DIGITS, *OPERATORS, END)


@dataclass(frozen=True, slots=True)
class Expression:
    """A prefix expression.

    Args:
        tokens: of `TOKENS`, balanced.
    """

    tokens: tuple[str, ...]

    def value(self) -> int:
        """The value of the list, 0 … 9: [MED rounds down, [SM is the sum modulo 10."""
        lists: list[list[int]] = [[]]
        operators: list[str] = []
        for token in self.tokens:
            if token in OPERATORS:
                operators.append(token)
                lists.append([])
            elif token == END:
                arguments = lists.pop()
                lists[-1].append(OPERATORS[operators.pop()](arguments))
            else:
                lists[-1].append(int(token))
        return lists[0][0]

    def pairs(self) -> list[tuple[int, int]]:
        """A tree over the tokens, made binary from the left: ((([MAX 2) 9) ]).

        Pair k, (left, right), is node T + k of T tokens; the last is the root.
        """
        pairs: list[tuple[int, int]] = []
        unfinished: list[int] = []

        def join(right: int) -> int:
            pairs.append((unfinished.pop(), right))
            return len(self.tokens) + len(pairs) - 1

        for place, token in enumerate(self.tokens):
            if token in OPERATORS:
                unfinished.append(place)
                continue
            done = join(place) if token == END else place
            if unfinished:
                unfinished.append(join(done))
        return pairs


def draw(count: int, seed: int = 0, max_tokens: int | None = None) -> list[Expression]:
    """The first `count` distinct expressions that `seed` draws; longer ones are left out.

    Example:
        >>> first, second = draw(2, seed=2, max_tokens=8)
        >>> " ".join(second.tokens), second.value()
        ('[MAX 9 1 ]', 9)
    """
    rng = Random(seed)  # of which only random() is used: its sequence is the same in every Python
    found: dict[tuple[str, ...], None] = {}
    while len(found) < count:
        tokens = tuple(_tokens(rng, depth=1))
        if max_tokens is None or len(tokens) <= max_tokens:
            found[tokens] = None
    return [Expression(tokens) for tokens in found]


def _tokens(rng: Random, depth: int) -> Iterator[str]:
    """A digit, or an operator with its arguments; `depth` is limited, so recursion is."""
    if depth >= MOST_DEPTH or rng.random() > OPERATOR_SHARE:
        yield DIGITS[int(len(DIGITS) * rng.random())]
        return
    operator = list(OPERATORS)[int(len(OPERATORS) * rng.random())]
    yield operator
    for _ in range(2 + int((MOST_ARGUMENTS - 1) * rng.random())):
        yield from _tokens(rng, depth + 1)
    yield END


def numbered(tokens: Iterable[str]) -> list[int]:
    """Each token's place in `TOKENS`."""
    return [TOKENS.index(token) for token in tokens]
