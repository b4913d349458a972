"""Statements of "Beside others" on another library have a source, and each source is used."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs/beside-others.md").read_text("utf-8")
SOURCES = dict(re.findall(r"^\[([\w-]+)\]: (https?://\S+)$", TEXT, re.MULTILINE))
USED = re.findall(r"\]\[([\w-]+)\]", TEXT)


def tables() -> list[list[str]]:
    """The rows of the tables before "Choose", as lists of cells."""
    before = TEXT[: TEXT.index("\n## Choose\n")]
    rows = re.findall(r"^\| ?(?!-)(.*) \|$", before, re.MULTILINE)
    return [row.split(" | ") for row in rows if not row.startswith("|")]


def test_every_cell_about_a_library_links_to_a_source() -> None:
    rows = tables()
    assert len(rows) == 2 * 9
    assert [row[0] for row in rows[:9]] == [row[0] for row in rows[9:]]
    assert [cell for row in rows for cell in row[1:] if "](" not in cell and "][" not in cell] == []


def test_every_source_is_used_and_every_link_has_one() -> None:
    assert set(USED) == set(SOURCES)
