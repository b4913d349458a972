import json

import numpy as np
import pytest

from benchmarks import vectors


def parsed(tmp_path, *more):
    given = ["--rows", "30", "--dim", "4", "--rounds", "2", "--folder", str(tmp_path), *more]
    return vectors.parse(given)


def test_readers_take_turns_and_find_the_same(tmp_path):
    found = vectors.run(parsed(tmp_path, "--readers", "loadtxt"))
    assert list(found["seconds"]) == ["dynbatch", "loadtxt"] and found["fastest"] == "loadtxt"
    assert found["ratio"] > 0 and json.dumps(found)
    assert "30 × 4" in vectors.as_text(found) and "1.5 is wanted" in vectors.as_text(found)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_finds_other_numbers_stops_it(tmp_path, monkeypatch):
    def other(path, dim):
        words, matrix = vectors.by_dynbatch(path, dim)
        return words, matrix + np.float32(0.01)

    monkeypatch.setitem(vectors.READERS, "loadtxt", other)
    with pytest.raises(ValueError, match="loadtxt finds other words or numbers"):
        vectors.run(parsed(tmp_path, "--readers", "loadtxt"))


def test_what_is_not_installed_is_left_out(tmp_path, monkeypatch):
    def absent(path, dim):
        raise ImportError("No module named 'polars'")

    monkeypatch.setitem(vectors.READERS, "polars", absent)
    found = vectors.run(parsed(tmp_path, "--readers", "polars"))
    assert found["skipped"] == {"polars": "No module named 'polars'"} and found["ratio"] is None
    assert "polars     not run" in vectors.as_text(found)
