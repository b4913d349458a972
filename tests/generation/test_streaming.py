"""Pieces of text, joined."""

import numpy as np
import pytest

from dynbatch.generation.streaming import REPLACEMENT, TextStream
from dynbatch.text import ByteTokenizer, HuggingFaceTokenizer
from tests.marks import exhaustive

TOKENIZER = ByteTokenizer()


def random_bytes(rng, kind):
    count = int(rng.integers(0, 30))
    if kind == 0:
        return rng.integers(0, 256, count)
    points = rng.choice([65, 233, 0x4E2D, 0x1F600, 0x10FFFF, 0x7F, 0xFFFD], count)
    ids = TOKENIZER.encode("".join(map(chr, points)))
    return np.delete(ids, rng.integers(0, ids.size)) if kind == 1 and ids.size else ids


@pytest.mark.parametrize("count", [1_000, exhaustive(10_000)])
def test_pieces_joined_are_the_text_of_random_bytes(count):
    rng = np.random.default_rng(0)
    for number in range(count):
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
    """The beginning of the first stop string to be complete."""
    complete = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(complete)[1]


def test_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(TOKENIZER, ("STOP",))
    assert [stream.put(one) for one in b"aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert stream.end() == "STO" and not stream.is_stopped


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_tokens_of_the_library_come_back_as_the_whole_text(kind, tmp_path):
    """Bytes as GPT-2 has them; pieces as Llama has them, whose first space is not the text's."""
    library = pytest.importorskip("tokenizers")
    lines = ["the old cat sat on the mat", "Grüße aus 東京 😀 naïve café", "it's done, world"]
    if kind == "bytes":
        made = library.ByteLevelBPETokenizer()
        made.train_from_iterator(lines, vocab_size=290)
    else:
        made = library.Tokenizer(library.models.BPE(byte_fallback=True, unk_token="<unk>"))
        made.normalizer = library.normalizers.Sequence(
            [library.normalizers.Prepend("▁"), library.normalizers.Replace(" ", "▁")]
        )
        special = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)]]
        trainer = library.trainers.BpeTrainer(vocab_size=320, special_tokens=special)
        made.train_from_iterator(lines, trainer)
        decoders = library.decoders
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )  # fmt: skip
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer, rng = HuggingFaceTokenizer.from_pretrained(tmp_path), np.random.default_rng(0)
    for number in range(300):
        count = int(rng.integers(1, 25))
        ids = rng.integers(0, len(tokenizer), count)
        if number % 2:
            ids = tokenizer.encode("".join(rng.choice(list("aé 東😀 the,'"), count)))
        stream = TextStream(tokenizer)
        assert "".join([*map(stream.put, ids), stream.end()]) == tokenizer.decode(ids)
