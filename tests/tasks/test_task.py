"""Examples that are held out: each decides by itself."""

from dynbatch.tasks.task import divided, hold_out


def test_a_twentieth_is_held_out_for_test_and_for_dev():
    parts = [hold_out(f"word{number}") for number in range(4000)]
    assert 150 < parts.count("test") < 250
    assert 150 < parts.count("dev") < 250


def test_the_split_is_pinned_for_good():
    # sha256 of these words mod 20 is 1, 0, 0, 5: published error rates rely on it.
    assert [hold_out(word) for word in ("padding", "hello", "aaron")] == ["dev", "test", "test"]
    assert hold_out("abc") == "train"


def test_a_split_keeps_every_example_once():
    parts = divided(range(300), str)
    assert sorted(parts.train + parts.dev + parts.test) == list(range(300))
    assert parts.dev and all(hold_out(str(number)) == "dev" for number in parts.dev)
