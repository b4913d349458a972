"""Files of text line by line, and what is said of a line that cannot be read."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from dynbatch.errors import DataError

Entry = TypeVar("Entry")

GZIP = b"\x1f\x8b"

_COMPRESSED = {
    re.escape(GZIP): "gunzip",
    rb"PK\x03\x04": "unzip",
    rb"BZh[1-9]1AY&SY": "bunzip2",
    rb"\xfd7zXZ\0": "unxz",
    rb"\x28\xb5\x2f\xfd": "unzstd",
}
"""The first bytes of compressed files, and what takes them apart."""

HEAD_BYTES = 16
"""More than these first bytes are."""


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file, without blanks around them; blank lines are left out.

    Raises:
        DataError: the file cannot be read or has blank lines only, or a line is not UTF-8. Names
            file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "sentences.txt")
        ...     _ = path.write_text("The fox sleeps.\\n\\nIt snows. \\n")
        ...     read_lines(path)
        ['The fox sleeps.', 'It snows.']
    """
    lines = [stripped for _, line in numbered_lines(path) if (stripped := line.strip())]
    return some("line with text", path, lines, "one entry on each line")


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers, from 1, without line ends and byte order mark.

    Raises:
        DataError: the file cannot be read or is compressed, or a line is not UTF-8 or holds a zero
            byte. Names file and line.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    refuse_compressed(path, line)
                yield number, line_text(path, number, line)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | Path, error: OSError) -> DataError:
    """The error for a file that cannot be opened; its fix is the file that was meant, perhaps."""
    near = nearest(Path(path))
    return DataError(
        f"{path}: cannot be read: {error.strerror}." + f"\n  fix:  {near}?" * (near is not None)
    )


def nearest(path: Path) -> Path | None:
    """The file or folder beside a path whose name is most like its own, if one is."""
    try:
        beside = [one.name for one in path.parent.iterdir() if one.name != path.name]
    except OSError:
        return None
    near = get_close_matches(path.name, beside, n=1)
    return path.with_name(near[0]) if near else None


def refuse_compressed(path: str | Path, head: bytes) -> None:
    """Check that a file which begins so is not compressed.

    Raises:
        DataError: it is; the fix is the program that takes it apart.
    """
    for magic, program in _COMPRESSED.items():
        if re.match(magic, head):
            raise DataError(f"{path}: it is compressed.\n  fix:  {program} {path}")


def line_text(path: str | Path, number: int, line: bytes) -> str:
    """One line of a file as text; see `numbered_lines`."""
    where = f"{path}:{number}"
    text = utf8_text(where, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
    if "\0" in text:
        raise DataError(
            f"{where}: it holds a zero byte, so the file is not text, or it is UTF-16.\n"
            "  fix:  convert the file, for example with iconv -f UTF-16 -t UTF-8"
        )
    return text.rstrip("\r\n")


def utf8_text(where: str, line: bytes) -> str:
    """The text of a line.

    Raises:
        DataError: it is not UTF-8; says where.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise DataError(
            f"{where}: byte {error.start + 1}, 0x{line[error.start]:02x}, is not UTF-8.\n"
            "  fix:  convert the file, for example with iconv "
            f"-f {'UTF-16' if is_utf16 else 'LATIN1'} -t UTF-8"
        ) from None


def some(what: str, path: str | Path, entries: list[Entry], rule: str) -> list[Entry]:
    """The entries of a file, of which there is one or more.

    Raises:
        DataError: there is none.
    """
    if not entries:
        raise DataError(f"{path}: no {what}.\n  rule: {rule}")
    return entries


def bad_line(where: str, problem: str, line: str, rule: str, fix: str) -> DataError:
    """The error of a line that can be decoded, but not read."""
    return DataError(f"{where}: {problem}.\n  line: {line[:80]!r}\n  rule: {rule}\n  fix:  {fix}")


def num_columns(count: int, first: int) -> str:
    """The number of columns of a line, in words, and the first line, if it has others."""
    columns = f"{count} column{'s' * (count != 1)}"
    return columns if count == first else f"{columns}, the first line has {first}"


def printable(text: str) -> str:
    """Text without what a terminal would obey: other characters than these are U+FFFD.

    Example:
        >>> printable("né\\x1b[2J\\n")
        'né�[2J\\n'
    """
    return "".join([one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text])
