"""The vocabulary: numbering, marks, and files that are whole or refused."""

import json

import pytest

from dynbatch.errors import DataError, DtypeError, VocabularyError
from dynbatch.text import Vocabulary


def test_tokens_are_numbered_by_frequency_then_spelling():
    vocabulary = Vocabulary.build([["b", "a", "c"], ["c", "b"]])
    assert vocabulary.tokens == ["<s>", "</s>", "<unk>", "b", "c", "a"]


def test_rare_tokens_are_left_out():
    vocabulary = Vocabulary.build([["b", "a", "c"], ["c", "b"]], min_count=2)
    assert "a" not in vocabulary and "b" in vocabulary
    assert vocabulary.encode(["a", "b"]).tolist() == [vocabulary.unknown, 3]


def test_encoding_and_decoding_are_inverse():
    vocabulary = Vocabulary(["AH", "N", "S"])
    tokens = ["S", "AH", "N", "S"]
    assert vocabulary.decode(vocabulary.encode(tokens)) == tokens


def test_an_empty_sequence_encodes_to_no_ids():
    ids = Vocabulary(["a"]).encode([])
    assert ids.shape == (0,) and ids.dtype == "int64"


def test_a_text_in_place_of_its_words_is_refused():
    with pytest.raises(DtypeError, match=r"text\.split\(\)"):
        Vocabulary(["a", "film"]).encode("film")
    assert Vocabulary("ab").encode("ba").tolist() == [4, 3]


def test_decoding_stops_at_the_end_mark_and_drops_the_begin_mark():
    vocabulary = Vocabulary(["a", "b"])
    ids = [vocabulary.begin, 3, vocabulary.unknown, vocabulary.end, 4]
    assert vocabulary.decode(ids) == ["a", "<unk>"]


def test_a_token_of_the_data_spelled_like_a_mark_is_unknown():
    vocabulary = Vocabulary.build([["a", "</s>"]])
    assert len(vocabulary) == 4
    assert vocabulary.encode(["</s>", "a"]).tolist() == [vocabulary.unknown, 3]


@pytest.mark.parametrize("bad", [-1, 4])
@pytest.mark.parametrize("before", [[3], [0, 3]])
def test_an_id_outside_the_vocabulary_is_refused_at_its_position(bad, before):
    place = len(before)
    with pytest.raises(
        VocabularyError, match=rf"id {bad} at position {place}.\n  rule: 0 <= id < 4"
    ):
        Vocabulary(["a"]).decode([*before, bad])


@pytest.mark.parametrize("tokens", [["a", "a"], ["<s>"]])
def test_repeated_tokens_and_marks_are_refused(tokens):
    with pytest.raises(DataError, match=rf"{tokens[0]}.* given twice, or a mark"):
        Vocabulary(tokens)


def test_a_saved_vocabulary_is_loaded_the_same(tmp_path):
    vocabulary = Vocabulary(["ä", "b"])
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json").tokens == vocabulary.tokens
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.json"]


def test_a_save_that_fails_says_why(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match=r"taken: cannot be written: Is a directory"):
        Vocabulary(["a"]).save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"tokens": ["<s>", "</s>", "<u',
        b"\xff\xfe",
        b"[1, 2]",
        b'{"tokens": 3}',
        json.dumps({"tokens": ["a", "b", "c", "d"]}).encode(),
        json.dumps({"tokens": ["<s>", "</s>", "<unk>", "a", "a"]}).encode(),
        json.dumps({"tokens": ["<s>", "</s>", "<unk>", 7]}).encode(),
    ],
)
def test_a_truncated_or_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"vocabulary\.json: not a vocabulary"):
        Vocabulary.load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Vocabulary.load(tmp_path / "none.json")


def test_marks_stand_around_what_a_decoder_reads_and_predicts():
    letters = Vocabulary("ab")
    assert letters.encode("ba", marks=True).tolist() == [0, *letters.encode("ba"), 1]
    assert letters.encode("", marks=True).tolist() == [letters.begin, letters.end]
    assert letters.decode(letters.encode("ba", marks=True)) == ["b", "a"]
