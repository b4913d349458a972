"""Our WordPiece beside Hugging Face's `tokenizers`: ids it gave, and those it gives."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dynbatch.errors import ArgumentError, CheckpointError, VocabularyError
from dynbatch.text import WordPiece
from tests.train.fuzz_checkpoints import edit, flip_bits, text_of

CASES = json.loads((Path(__file__).parent / "wordpiece_cases.json").read_text())
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def folder_of(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=["uncased", "cased", "accents"])
def test_ids_and_texts_are_those_of_the_tokenizers_library(tmp_path, case):
    ours = WordPiece.from_pretrained(folder_of(tmp_path, case["tokenizer"]))
    assert len(ours) == len(case["tokenizer"]["model"]["vocab"])
    for text, ids, decoded in case["texts"]:
        assert ours.encode(text).tolist() == ids, text
        assert ours.encode(text, special=False).tolist() == ids[1:-1]
        assert ours.decode(ids) == decoded


@pytest.mark.parametrize("case", CASES, ids=["uncased", "cased", "accents"])
def test_the_library_itself_agrees_where_it_is_installed(tmp_path, case):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(case["tokenizer"]))
    ours = WordPiece.from_pretrained(folder_of(tmp_path, case["tokenizer"]))
    rng = np.random.default_rng(0)
    words = [word for text, _, _ in case["texts"] for word in text.split(" ")]
    for _ in range(300):
        text = " ".join(rng.choice(words, size=rng.integers(20)))
        found = theirs.encode(text).ids
        assert ours.encode(text).tolist() == found
        assert ours.decode(found, special=True) == theirs.decode(found, skip_special_tokens=False)


def test_vocab_txt_gives_the_same_ids_and_keeps_characters_that_end_lines(tmp_path):
    case = CASES[0]
    vocabulary = case["tokenizer"]["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.get)
    pieces += ["\u2028", "\x85", "last"]
    (tmp_path / "vocab.txt").write_bytes("".join([f"{piece}\n" for piece in pieces]).encode())
    ours = WordPiece.from_pretrained(tmp_path)
    assert len(ours) == len(pieces) and ours.ids["last"] == len(pieces) - 1
    for text, ids, _ in case["texts"]:
        assert ours.encode(text).tolist() == ids, text
    cased = CASES[1]["tokenizer"]["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(cased, key=cased.get)))
    config = {"do_lower_case": False, "tokenize_chinese_chars": False}
    config["mask_token"] = {"content": "[MASK]", "lstrip": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = WordPiece.from_pretrained(tmp_path)
    for text, ids, _ in CASES[1]["texts"]:
        assert ours.encode(text).tolist() == ids, text


def test_a_text_of_nothing_has_the_ids_around_it_alone():
    ours = WordPiece([*SPECIAL, "a"])
    assert ours.encode("").tolist() == [2, 3] and ours.encode("", special=False).shape == (0,)
    assert ours.encode("").dtype == np.int64 and ours.decode([]) == ""


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"'\[UNK\]' is not among its 1 pieces"):
        WordPiece(["a"])
    ours = WordPiece([*SPECIAL, "a"])
    with pytest.raises(ArgumentError, match="a list to encode"):
        ours.encode(["a", "a"])
    with pytest.raises(VocabularyError, match="id 6 of 6"):
        ours.decode([2, 6])
    with pytest.raises(ArgumentError, match="ids, a vector"):
        ours.decode([[2, 3]])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["model", "type"], "BPE", "its model is a 'BPE', not a WordPiece"),
        (["normalizer", "type"], "NFC", "HuggingFaceTokenizer"),
        (["pre_tokenizer"], None, "not a tokenizer's"),
        (["normalizer", "clean_text"], False, "not BERT's"),
        (["added_tokens", 1, "lstrip"], True, r"'\[UNK\]' is found by rules of its own"),
        (["added_tokens", 1], {}, "not a tokenizer's"),
        (["model", "vocab"], {"a": 3, "b": 3}, "without an id of their own"),
        (["model", "vocab"], {"a": -1}, "without an id of their own"),
        (["model", "vocab"], {"a": 10**30}, "without an id of their own"),
        (["model", "vocab"], ["a"], "not a tokenizer's"),
        (["model", "max_input_chars_per_word"], "x", "not a tokenizer's"),
        (["model", "unk_token"], "none", "'none' is not among"),
        (["post_processor"], {"type": "Sequence"}, "post_processor is a 'Sequence'"),
        (["post_processor", "single"], [], "not a tokenizer's"),
    ],
)
def test_files_that_are_damaged_or_of_another_kind_are_refused(tmp_path, path, value, said):
    content = json.loads(json.dumps(CASES[0]["tokenizer"]))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(CheckpointError, match=f"{tmp_path}(.|\n)*{said}"):
        WordPiece.from_pretrained(folder_of(tmp_path, content))


def test_a_folder_without_a_tokenizer_and_bytes_that_are_not_text_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor vocab\.txt"):
        WordPiece.from_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(CheckpointError, match=r"vocab\.txt: not a tokenizer's"):
        WordPiece.from_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"a\n")
    with pytest.raises(CheckpointError, match="is not among"):
        WordPiece.from_pretrained(tmp_path)


def test_a_damaged_tokenizer_is_refused_or_encodes(tmp_path):
    content = json.loads(json.dumps(CASES[0]["tokenizer"]))
    content["model"]["vocab"] = dict(list(content["model"]["vocab"].items())[:12])
    refused = 0
    for seed in range(300):
        rng, tree = Random(seed), json.loads(json.dumps(content))
        edit(rng, tree)
        raw = text_of(tree).encode("utf-8", "surrogatepass")
        (tmp_path / "tokenizer.json").write_bytes(flip_bits(rng, raw) if seed % 4 == 0 else raw)
        try:
            WordPiece.from_pretrained(tmp_path).encode("Hello [MASK]!")
        except CheckpointError:
            refused += 1
    assert 50 < refused < 250
