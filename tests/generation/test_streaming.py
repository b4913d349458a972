"""Pieces of text, joined."""

import numpy as np
import pytest

from dynbatch.generation.streaming import REPLACEMENT, TextStream
from dynbatch.text import ByteTokenizer

TOKENIZER = ByteTokenizer()


def random_bytes(rng, kind):
    count = int(rng.integers(0, 30))
    if kind == 0:
        return rng.integers(0, 256, count)
    points = rng.choice([65, 233, 0x4E2D, 0x1F600, 0x10FFFF, 0x7F, 0xFFFD], count)
    ids = TOKENIZER.encode("".join(map(chr, points)))
    return np.delete(ids, rng.integers(0, ids.size)) if kind == 1 and ids.size else ids


def test_pieces_joined_are_the_text_of_random_bytes():
    rng = np.random.default_rng(0)
    for number in range(10_000):
        ids = random_bytes(rng, number % 3)
        stream = TextStream(TOKENIZER)
        pieces = [stream.put(one) for one in ids]
        pieces.append(stream.end())
        assert "".join(pieces) == TOKENIZER.decode(ids)
        if number % 3 == 2:  # whole text: no piece has a part of a code point
            points = TOKENIZER.decode(ids).count(REPLACEMENT)
            assert sum(piece.count(REPLACEMENT) for piece in pieces) == points


@pytest.mark.parametrize("seed", range(50))
def test_a_stop_string_ends_the_text_wherever_tokens_divide_it(seed):
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(list("ab\nü"), 40))
    stops = ("\n\n", "abab", "üa")
    stream = TextStream(TOKENIZER, stops)
    pieces = [stream.put(one) for one in TOKENIZER.encode(text)]
    pieces.append(stream.end())
    ends = [text.find(stop) for stop in stops if stop in text]
    assert "".join(pieces) == (text[: _first_end(text, stops)] if ends else text)
    assert stream.is_stopped is bool(ends)


def _first_end(text, stops):
    """Where the first stop string to be complete begins."""
    complete = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(complete)[1]


def test_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(TOKENIZER, ("STOP",))
    assert [stream.put(one) for one in b"aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert stream.end() == "STO" and not stream.is_stopped
