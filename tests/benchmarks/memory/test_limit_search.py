"""The table of planning within limits."""

from benchmarks.memory import limit_search


def test_a_row_for_each_limit_tells_what_was_planned():
    for gates in (0, 3):
        loss_of = limit_search.stepwise(hidden=4, gates=gates, sentences=2, longest=3)
        rows = limit_search.measure("small", loss_of, rounds=1)
        assert [row.limit for row in rows] == list(limit_search.SHARES)
        assert all(row.plans > 0 and row.ratio > 0 for row in rows)
        assert all(row.held <= row.limit for row in rows if row.saving != "too little")
        text = limit_search.table(rows, "")
        assert "planning" in text and "small" in text
