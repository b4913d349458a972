"""The output while a task learns."""

from dynbatch.tasks.learning import COLUMNS, broken


def test_a_long_line_is_broken_at_blanks_and_within_longer_words():
    line = "  → " + "word " * 20 + "x" * (COLUMNS + 1)
    pieces = broken(line)
    assert "".join(pieces) == line and max(map(len, pieces)) <= COLUMNS
    assert pieces[0].startswith("  → word") and pieces[0].endswith("word ")
    assert broken("") == [""]
