"""JSON lines: an object of JSON on each line of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynbatch.text.lines import bad_line, numbered_lines, some

_FIX = "write each entry on a line of its own, without line ends inside"


def read_json_lines(path: str | Path, *fields: str) -> list[dict[str, Any]]:
    """The objects of a UTF-8 file that has one of JSON on each line. Blank lines are skipped.

    Args:
        fields: names that every object has; it may have others.

    Raises:
        DataError: the file cannot be read or holds no object, or a line is not UTF-8, not an object
            of JSON, or lacks a field. Names file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "mails.jsonl")
        ...     _ = path.write_text('{"text": "You won!", "label": "spam"}\\n')
        ...     [entry["text"] for entry in read_json_lines(path, "text", "label")]
        ['You won!']
    """
    names = ", ".join([f'"{name}": …' for name in fields])
    rule = f"an object of JSON on each line{f', {{{names}}}' if fields else ''}"
    entries = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        entry = json_object(where, line, rule, _FIX)
        if missing := [name for name in fields if name not in entry]:
            fix = f"give it, or leave the line out; its names are {', '.join(entry) or 'none'}"
            raise bad_line(where, f"no {' and no '.join(map(repr, missing))}", line, rule, fix)
        entries.append(entry)
    return some("object", path, entries, rule)


def json_object(where: str, line: str, rule: str, fix: str) -> dict[str, Any]:
    """The object of a line.

    Raises:
        DataError: the line is not JSON, or something else of JSON; says where, rule and fix.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_line(where, f"not JSON: {error}", line, rule, fix) from None
    if not isinstance(content, dict):
        raise bad_line(where, "not an object of JSON", line, rule, fix)
    return content
