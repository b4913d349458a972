from benchmarks import pipeline
from tests.parallel.ranks import on_ranks


def test_the_time_waited_stands_beside_the_formula(same_threads):
    small = ["--layers", "1", "--width", "8", "--batch", "4", "--rounds", "2"]
    options = pipeline.parse([*small, "--micro-batches", "1", "3"])
    found, nothing = on_ranks(2, lambda communicator: pipeline.measure(communicator, options))
    assert nothing is None and found["ranks"] == 2
    assert [row["formula"] for row in found["rows"]] == [0.5, 0.25]
    assert all(0 < row["waited"] < 1 for row in found["rows"])
    assert "25.0% by the formula" in pipeline.as_text(found)
