"""Files of plain text: the documents that it is of."""

from __future__ import annotations

import re
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.text.lines import numbered_lines


def read_documents(path: str | Path) -> list[str]:
    """The documents of a UTF-8 file of text.

    Lines of one `%` stand between them, as in files of fortunes; where there are none, blank lines
    do; where there are none either, each line is a document.

    Raises:
        DataError: it cannot be read, is not UTF-8 (says which line), or holds no text.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "tales.txt")
        ...     _ = path.write_text("Once upon a time\\nthere was a fox.\\n\\nIt snowed.\\n")
        ...     read_documents(path)
        ['Once upon a time\\nthere was a fox.', 'It snowed.']
    """
    texts = documents("\n".join([line for _, line in numbered_lines(path)]))
    if not texts:
        raise DataError(
            f"{path}: there is no text in it.\n"
            "  rule: documents with blank lines, or lines of one %, between them"
        )
    return texts


def documents(text: str) -> list[str]:
    r"""The documents of a text that was read already; see `read_documents`.

    Example:
        >>> documents("One\ntwo.\n\n\nThree."), documents("One.\n\nTwo.\n%\nThree.\n")
        (['One\ntwo.', 'Three.'], ['One.\n\nTwo.', 'Three.'])
        >>> documents("One.\nTwo.\n")
        ['One.', 'Two.']
    """
    between = r"^%$"
    if not re.search(between, text, re.MULTILINE):
        between = r"\n[ \t]*\n" if re.search(r"\S[ \t]*\n[ \t]*\n\s*\S", text) else r"\n"
    pieces = [each.strip("\n") for each in re.split(between, text, flags=re.MULTILINE)]
    return [each for each in pieces if each.strip()]
