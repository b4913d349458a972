"""Files of pairs: a text and what it is to become, such as its translation.

One example is one source with every target that counts as right: a word with two pronunciations
trains as two pairs and is tested as one word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dynbatch.arguments import refused
from dynbatch.text.lines import bad_line, numbered_lines, some

_RULE = "source<TAB>target on each line: one tab, with text before and after it"


@dataclass(frozen=True, slots=True)
class ParallelText:
    """One source and its references: every target that is right, the first the most usual.

    Raises:
        ArgumentError: `references` is a text, whose characters would be targets.
    """

    source: str
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.references, str):
            raise refused(
                "ParallelText", f"references is a text, {self.references[:40]!r}",
                "a tuple of targets, each of which is right", "ParallelText(source, (target,))",
            )  # fmt: skip


def read_pairs(path: str | Path) -> list[ParallelText]:
    """The examples of a UTF-8 file with one `source<TAB>target` on each line.

    Lines with the same source become one example with several references. Blank lines are skipped.

    Raises:
        DataError: the file cannot be opened or holds no pair, or a line is not UTF-8, has not
            exactly one tab, or has nothing on one side of it. Names file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("fox\\tFuchs\\ncat\\tKatze\\ncat\\tKater\\n")
        ...     read_pairs(path)[1]
        ParallelText(source='cat', references=('Katze', 'Kater'))
    """
    lines = numbered_lines(path)
    pairs = [_pair(f"{path}:{number}", line) for number, line in lines if line.strip()]
    return joined(some("pair", path, pairs, _RULE))


def joined(pairs: Iterable[tuple[str, str]]) -> list[ParallelText]:
    """One example for each source, with all its targets."""
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    return [ParallelText(source, tuple(targets)) for source, targets in references.items()]


def _pair(where: str, line: str) -> tuple[str, str]:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != 2 or not all(fields):
        counts = {1: "no tab", 2: "nothing on one side of the tab"}
        counted = counts.get(len(fields), f"{len(fields) - 1} tabs")
        raise bad_line(
            where, f"expected source<TAB>target, found {counted}", line,
            _RULE,
            "put a tab between source and target, and leave out lines that lack one of them",
        )  # fmt: skip
    return fields[0], fields[1]
