"""Pairs of texts: their tokens, and what tokens are where the settings leave it open."""

from dynbatch.tasks.translation.pairs import join, tokenize, units_of


def test_tokens_are_words_or_characters_and_come_back():
    assert tokenize("Bär da", "words") == ("Bär", "da")
    assert tokenize("Bär da", "characters") == ("B", "ä", "r", " ", "d", "a")
    for units in ("words", "characters"):
        assert join(tokenize("Bär da", units), units) == "Bär da"


def test_words_of_which_many_are_there_only_once_are_spelled():
    calls = [f"alarm with = {k} & {k % 5}" for k in range(20)]  # of 6 words one, more than a tenth
    assert units_of(calls, "auto") == "characters"
    assert units_of([f"{call} and more words of which few" for call in calls], "auto") == "words"
