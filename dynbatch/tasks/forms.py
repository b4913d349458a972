"""The task that a file of text is for, by its form."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text.labelled import is_json_lines, named_columns, num_values, rows_of
from dynbatch.text.lines import line_text, refuse_compressed, unreadable
from dynbatch.text.tagged import Lines, is_comment, is_conllu, slashed, split_columns

MOST_BYTES = 1 << 18
"""A form is told by so much of a file's beginning."""

FORMS = {
    "language-model": (
        "text; blank lines, or lines of one %, between its documents",
        ["Once upon a time", "there was a fox.", "", "The end came soon."],
    ),
    "translation": ("source<TAB>target on each line", ["the fox<TAB>der Fuchs"]),
    "classification": (
        "label<TAB>text on each line, a .csv file, or JSON lines",
        ["spam<TAB>You have won!", '{"text": "You have won!", "label": "spam"}'],
    ),
    "tagging": (
        "word<TAB>tag a line, blank lines between; word/TAG; CoNLL-U",
        ["The<TAB>DT", "fox<TAB>NN", "", "Run<TAB>VB"],
    ),
}
"""What a file of each task is, with an example."""


def task_of(path: str | Path) -> tuple[str, str]:
    """The task that a file is for, and a sentence that says what was seen.

    CoNLL-U, lines of a word and its tag with blank lines between groups of them, and word/TAG are
    for tagging. JSON lines with a text and a label are for classification, and so are two columns
    of which one has few different values, each on five lines on average or more (in a .csv file, on
    two); where both columns have many, they are a source and its target. Text has no tabs.

    Raises:
        DataError: the file cannot be read, is a pipe, is not text in UTF-8, is empty, or is of none
            of these forms, or could be of two. The message shows all forms.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("the fox\\tder Fuchs\\nthe cat\\tdie Katze\\n")
        ...     task_of(path)[0]
        'translation'
    """
    lines = beginning(path)
    written = [line for _, line in lines if line.strip()]
    if is_json_lines(written):
        if '"text"' in written[0] and '"label"' in written[0]:
            return _said(path, "classification", "each line is JSON with a text and a label")
        raise _unknown(path, 'its lines are JSON, but the first has no "text" and "label"')
    rows = [line for line in written[:20] if not is_comment(line)]
    token_lines = [line for line in rows if is_conllu(split_columns(line))]
    # Between blanks a line of text may be ten words, too.
    if any(["\t" in line for line in token_lines]) or (
        token_lines and len(token_lines) == len(rows)
    ):
        return _said(path, "tagging", "it is CoNLL-U, whose UPOS column has the tags")
    if _are_tagged(lines):
        return _said(path, "tagging", "each line is a word and its tag, with blank lines between")
    if all([slashed(line) is not None for line in written]):
        return _said(path, "tagging", "each word has a tag behind a slash")
    if Path(path).suffix.lower() == ".csv":
        return _task_of_columns(path, rows_of(path, lines, is_whole=False))
    tabs = [line.strip().count("\t") for line in written]
    if sum([count > 0 for count in tabs]) * 20 < len(tabs):
        if all([line.lstrip()[0] in "()" for line in written]):
            raise _unknown(
                path, "its lines are trees in brackets, which dynbatch.text.read_trees reads for a "
                "model of your own"
            )  # fmt: skip
        return _said(path, "language-model", "its lines are text without tabs")
    return _task_of_columns(path, rows_of(path, lines))


def beginning(path: str | Path) -> list[tuple[int, str]]:
    """The first lines of a file with their numbers, at most `MOST_BYTES` of them.

    Raises:
        DataError: the file cannot be read, is a pipe, is compressed or not UTF-8, or has no line.
    """
    refuse_pipe(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    refuse_compressed(path, content)
    if len(content) > MOST_BYTES:  # the last line may be cut, unless it is all there is
        content = content[: content.rfind(b"\n") + 1] or content.decode("utf-8", "ignore").encode()
    lines = [(k, line_text(path, k, line)) for k, line in enumerate(io.BytesIO(content), start=1)]
    if not any([line.strip() for _, line in lines]):
        raise _unknown(path, "it is empty")
    return lines


def refuse_pipe(path: str | Path) -> None:
    """Check that a file can be read again once its form is known.

    Raises:
        DataError: it is a pipe or a device.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # which reading it says
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(
            f"{path}: it is a pipe or a device, not a file.\n"
            "  rule: the form of a file is told by its beginning, and then it is read as a whole\n"
            "  fix:  write it into a file, and give that; `dynbatch train` with --task does not ask"
            " for the form,\n        and reads it once"
        )


def _are_tagged(lines: Lines) -> bool:
    """Whether lines have two single words each or more, in groups between blank lines."""
    groups = tagged = 0
    is_begun = False
    width = 0
    for _, line in lines:
        if not line.strip():
            is_begun = False
            continue
        columns = split_columns(line)
        width = width or len(columns)
        if width < 2 or len(columns) != width or any([" " in column for column in columns]):
            return False
        groups += not is_begun
        tagged += 1
        is_begun = True
    tags = {split_columns(line)[-1] for _, line in lines if line.strip()}
    return 1 < groups < tagged and len(tags) * 2 <= tagged


def _task_of_columns(path: str | Path, rows: list[tuple[int, list[str]]]) -> tuple[str, str]:
    """The task of a file of columns: labels and texts, or sources and targets."""
    if named_columns(rows[0][1]) is not None:
        return _said(path, "classification", "its first line names a label and a text")
    pairs = [(number, row) for number, row in rows if len(row) == 2]
    if len(pairs) * 20 < len(rows) * 19:
        number = next(number for number, row in rows if len(row) != 2)
        count = len(rows) - len(pairs)
        raise _unknown(
            path, f"{count:,} of {len(rows):,} lines, such as {number}, are not two columns"
        )
    values = num_values(pairs)
    few, many = sorted(values)
    is_part = Path(path).stat().st_size > MOST_BYTES
    seen = (
        f"in {'the first ' if is_part else ''}{len(pairs):,} lines its columns have {values[0]:,} "
        f"and {values[1]:,} different values"
    )
    is_csv = Path(path).suffix.lower() == ".csv"  # which is not read as sources and targets
    if few * (2 if is_csv else 5) <= len(pairs) and few * (2 if is_csv else 4) <= many:
        which = "first" if values[0] == few else "second"
        return _said(path, "classification", f"{seen}, so that the {which} is the label")
    if few * 3 > len(pairs) and not is_csv:
        return _said(path, "translation", f"{seen}, so that they are sources and targets")
    raise _unknown(path, f"{seen}; these may be labels and texts, or sources and targets")


def _said(path: str | Path, task: str, seen: str) -> tuple[str, str]:
    return task, f"{path}: {seen}. It is read for {task}; --task chooses another."


def _unknown(path: str | Path, problem: str) -> DataError:
    shown = []
    for task, (form, example) in FORMS.items():
        shown += [f"    {task}: {form}", *[f"        {line}".rstrip() for line in example]]
    return DataError(
        f"{path}: {problem}.\n  rule: a file is of one of these forms\n"
        + "\n".join(shown)
        + "\n  fix:  give such a file, or say which it is, for example --task translation"
    )
