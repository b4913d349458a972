"""Characters and bytes."""

import numpy as np
import pytest

from dynbatch.errors import ArgumentError, DataError, VocabularyError
from dynbatch.text import ByteTokenizer, CharacterTokenizer

TEXTS = ["", "a", "Grüße, 東京 😀!\n", "\0\x7f"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_becomes_ids_and_text_again(text):
    for tokenizer in (ByteTokenizer(), CharacterTokenizer(TEXTS)):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int64 and ids.ndim == 1
        assert all(0 <= one < len(tokenizer) for one in ids)
        assert tokenizer.decode(ids) == text


def test_a_tokenizer_of_characters_is_made_again_from_its_alphabet():
    tokenizer = CharacterTokenizer(["zwei", "drei"])
    again = CharacterTokenizer(tokenizer.characters)
    assert again.encode("dreizwei").tolist() == tokenizer.encode("dreizwei").tolist()
    with pytest.raises(DataError, match="'x' is not among its 6 characters"):
        tokenizer.encode("x")


def test_bytes_that_are_not_text_are_replaced():
    assert ByteTokenizer().decode([195]) == "\ufffd"
    assert ByteTokenizer().encode("\ud800").tolist() == [63]


def test_ids_and_texts_of_another_kind_are_refused():
    for tokenizer in (ByteTokenizer(), CharacterTokenizer("ab")):
        with pytest.raises(VocabularyError, match="id -1 of"):
            tokenizer.decode([0, -1])
        with pytest.raises(VocabularyError, match="id 256 of"):
            tokenizer.decode(np.array([256], np.uint16))
        with pytest.raises(ArgumentError, match="float64"):
            tokenizer.decode([0.5])
        with pytest.raises(ArgumentError, match="None to encode"):
            tokenizer.encode(None)
