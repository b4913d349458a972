"""`require_equal`: an error that says in what ranks differ, and which of them have which value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dynbatch.errors import ParallelError

LONGEST = 100
"""Characters of a value that an error shows."""


def require_equal(
    owner: str, gathered: Sequence[Mapping[str, object]], rule: str, fix: str,
    fixes: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Compare values by name, of which all ranks have gathered those of all: all raise the error.

    Args:
        owner: the function or class that compares them.
        fixes: others than `fix`, by the name of a value.

    Raises:
        ParallelError: they differ; names the first value that does.
    """
    if all([other == gathered[0] for other in gathered]):
        return
    names = dict.fromkeys([name for each in gathered for name in each])
    name = next(name for name in names if len({each.get(name) for each in gathered}) > 1)
    ranks: dict[object, list[str]] = {}
    for rank, each in enumerate(gathered):
        ranks.setdefault(each.get(name, "nothing"), []).append(str(rank))
    shown = shortened([str(value) for value in ranks])
    said = "; ".join(
        [
            f"{text} on rank{'s' * (len(group) > 1)} {', '.join(group)}"
            for text, group in zip(shown, ranks.values(), strict=True)
        ]
    )
    fix = (fixes or {}).get(name, fix)
    raise ParallelError(f"{owner}: {name}: {said}.\n  rule: {rule}\n  fix:  {fix}")


def shortened(texts: Sequence[str]) -> list[str]:
    """Texts as errors show them: their first characters, or those around the first difference."""
    alike = max([_num_alike(*pair) for pair in pairwise(sorted(texts))], default=0)
    start = 0 if alike < LONGEST else alike - LONGEST // 2
    end = start + LONGEST
    return [f"{'…' * (start > 0)}{x[start:end]}{'…' * (end < len(x))}" for x in texts]


def _num_alike(one: str, other: str) -> int:
    """The number of characters before two texts differ."""
    differ = [a != b for a, b in zip(one, other, strict=False)]
    return differ.index(True) if True in differ else len(differ)
