import pytest

from benchmarks.memory import chunked_loss


def test_both_sides_agree_and_the_bytes_are_those_of_logits(same_threads):
    options = ["--vocabulary", "3000", "--tokens", "500", "--hidden", "4", "--rounds", "1"]
    found = chunked_loss.run(chunked_loss.parse(options))
    logits = 3000 * 500 * 4
    assert found["logits_bytes"] == logits
    # Stored: logits and their gradient. Chunked: all tokens fit one chunk.
    assert found["materialised_bytes"] == pytest.approx(2 * logits, rel=0.05)
    assert found["chunked_bytes"] == pytest.approx(logits, rel=0.05)
    assert found["less"] == pytest.approx(0.5, abs=0.05)
    assert found["relative_speed"] > 0
