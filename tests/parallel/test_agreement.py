"""The error that says in what ranks differ shows the difference."""

import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel.agreement import LONGEST, require_equal


def message_of(*values):
    with pytest.raises(ParallelError) as error:
        require_equal("Shards", [{"names": value} for value in values], "they are equal", "do so")
    return str(error.value).splitlines()[0]


@pytest.mark.parametrize("alike", [LONGEST - 1, LONGEST, 3 * LONGEST])
def test_texts_that_differ_late_are_shown_where_they_differ(alike):
    first, second = ("a" * alike + end + "a" * 200 for end in ("left", "right"))
    message = message_of(first, second, first)
    start = 0 if alike < LONGEST else alike - LONGEST // 2
    for text, ranks in ((first, "ranks 0, 2"), (second, "rank 1")):
        assert f"{text[start : start + LONGEST]}… on {ranks}" in message
    assert message.count("…a") == 2 * (start > 0)


def test_short_values_are_shown_whole():
    assert message_of(3, 4) == "Shards: names: 3 on rank 0; 4 on rank 1."
