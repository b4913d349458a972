"""Files of texts with a label each: two columns, CSV, or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text.json_lines import json_object
from dynbatch.text.lines import bad_line, num_columns, numbered_lines, some

LABELS = frozenset(
    "label labels class category sentiment intent topic target stars rating score tag".split()
)
TEXTS = frozenset(
    "text texts sentence review document message utterance content comment question tweet title "
    "body post headline description".split()
)
"""Names in a first line that say which column has the labels and which the texts."""

_RULE = 'label<TAB>text on each line, a .csv file of two columns, or {"text": …, "label": …} a line'

Rows = list[tuple[int, list[str]]]
"""The fields of each line that is not blank, with the line's number."""


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and the class that it belongs to."""

    text: str
    label: str


def read_labelled(path: str | Path) -> list[LabelledText]:
    """The texts of a UTF-8 file and their labels.

    Each line is JSON with "text" and "label"; or it has two columns, of which the one with fewer
    different values is the label. Columns stand apart by tabs; by commas in a file that is called
    .csv, whose fields may be quoted. A first line such as `label<TAB>text` names the columns, and
    then there may be others, which are not read.

    Raises:
        DataError: the file cannot be read or holds no text, or a line is not UTF-8, not JSON, or
            has another number of columns, or an empty text or label. Names file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "mails.tsv")
        ...     _ = path.write_text("ham\\tSee you.\\nspam\\tYou won!\\nham\\tSee me.\\n")
        ...     read_labelled(path)[1]
        LabelledText(text='You won!', label='spam')
    """
    lines = list(numbered_lines(path))
    if is_json_lines([line for _, line in lines]):
        texts = [_of_json(path, number, line) for number, line in lines if line.strip()]
    else:
        texts = _of_rows(path, rows_of(path, lines))
    return some("text", path, texts, _RULE)


def is_json_lines(lines: Iterable[str]) -> bool:
    """Whether the first line that is not blank begins an object of JSON."""
    return next((line for line in lines if line.strip()), "").lstrip().startswith("{")


def rows_of(path: str | Path, lines: Iterable[tuple[int, str]], is_whole: bool = True) -> Rows:
    """The columns of the lines, by commas with quoting in a .csv file, else by tabs.

    Args:
        is_whole: whether the lines are all of the file; a part may end within a quoted field.

    Raises:
        DataError: the quoting of a .csv file is broken.
    """
    if Path(path).suffix.lower() != ".csv":
        return [(number, line.split("\t")) for number, line in lines if line.strip()]
    reader = csv.reader([f"{line}\n" for _, line in lines], strict=is_whole)
    try:
        return [(reader.line_num, row) for row in reader if "".join(row).strip()]
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num}: {error}.\n"
            '  rule: a field with commas, quotes or line ends stands in "quotes", and quotes in it '
            'are doubled, ""\n'
            "  fix:  write the file with a library for CSV, or with tabs as a .tsv file"
        ) from None


def named_columns(first: Sequence[str]) -> tuple[int, int] | None:
    """The columns of labels and texts, if the first line names both.

    Example:
        >>> named_columns(["id", "Review", "sentiment"]), named_columns(["spam", "You won!"])
        ((2, 1), None)
    """
    names = [field.strip().lower() for field in first]
    columns = [[k for k, name in enumerate(names) if name in known] for known in (LABELS, TEXTS)]
    labels, texts = columns
    return (labels[0], texts[0]) if len(labels) == len(texts) == 1 else None


def num_values(rows: Rows) -> list[int]:
    return [len({row[k].strip() for _, row in rows}) for k in range(2)]


def _of_json(path: str | Path, number: int, line: str) -> LabelledText:
    where, fix = f"{path}:{number}", "give an object with both on each line"
    content = json_object(where, line, _RULE, fix)
    text, label = content.get("text"), content.get("label")
    label = json.dumps(label) if isinstance(label, int) else label  # 1 or true is a name, too
    if not (isinstance(text, str) and isinstance(label, str) and text.strip() and label.strip()):
        problem = f'"text" is {_shown(text)}, "label" is {_shown(label)}'
        raise bad_line(where, problem, line, _RULE, fix)
    return LabelledText(text, label.strip())


def _shown(value: object) -> str:
    return "not there" if value is None else f"{value!r:.40}"


def _of_rows(path: str | Path, rows: Rows) -> list[LabelledText]:
    if not rows:
        return []
    named, width = named_columns(rows[0][1]), len(rows[0][1])
    for number, row in rows:
        if len(row) != width or (width != 2 and named is None):
            raise bad_line(
                f"{path}:{number}", num_columns(len(row), width), "\t".join(row), _RULE,
                "take two columns, for example with cut -f 1,2, or name them in the first line, "
                "label<TAB>text",
            )  # fmt: skip
    if named is None:
        values = num_values(rows)
        label, text = (0, 1) if values[0] <= values[1] else (1, 0)
    else:
        (label, text), rows = named, rows[1:]
    return list(_checked(path, rows, label, text))


def _checked(path: str | Path, rows: Rows, label: int, text: int) -> Iterator[LabelledText]:
    for number, row in rows:
        labelled = LabelledText(row[text].strip(), row[label].strip())
        if not labelled.text or not labelled.label:
            raise bad_line(
                f"{path}:{number}", "an empty text or label", "\t".join(row), _RULE,
                "give both, or leave the line out",
            )  # fmt: skip
        yield labelled
