"""The page of the family: each feature has a line of ours, and the page runs every such line."""

import re
from pathlib import Path

import pytest

from docs.blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "family.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")


def rows_of(text):
    """The rows of the page's tables, without their heads: cells of a row."""
    rows, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_head:
            rows.append([cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)])
    return [cells[1:-1] for cells in rows]


def executed(text):
    """The code of the page's blocks, in single spaces."""
    return " ".join(" ".join(block.code for block in blocks_of(text)).split())


def without_a_line(text):
    """Rows of which nothing of ours runs, or of which a line does not stand in a block."""
    code = executed(text)
    return [
        (cells[0], line)
        for cells in rows_of(text)
        for line in CODE.findall(cells[-1]) or ["nothing"]
        if " ".join(line.split()) not in code
    ]


def test_every_row_has_lines_that_the_page_runs():
    assert len(rows_of(PAGE)) > 180
    assert without_a_line(PAGE) == []


def test_every_table_has_two_columns():
    assert {len(cells) for cells in rows_of(PAGE)} == {2}


@pytest.mark.parametrize(
    ("cell", "left"),
    [("`F.exp(x)`", []), ("a sentence", ["nothing"]), ("`F.exp(x)`, `F.log(x)`", ["F.log(x)"])],
)
def test_a_row_without_a_line_is_found(cell, left):
    page = f"| theirs | here |\n|---|---|\n| exp | {cell} |\n\n```python\nF.exp(x)\n```\n"
    assert without_a_line(page) == [("exp", line) for line in left]
