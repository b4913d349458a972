"""The tokenizers of other libraries, where these are installed, and what is said where not."""

import io
import json
import sys
from pathlib import Path

import pytest

from dynbatch.errors import CheckpointError, VocabularyError
from dynbatch.text import HuggingFaceTokenizer, SentencePieceTokenizer, WordPiece

CASES = json.loads((Path(__file__).parent / "wordpiece_cases.json").read_text())


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ImportError, match=r"tokenizers(.|\n)*pip install 'dynbatch\[text\]'"):
        HuggingFaceTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ImportError, match=r"sentencepiece(.|\n)*pip install 'dynbatch\[text\]'"):
        SentencePieceTokenizer(tmp_path / "spiece.model")


def test_a_tokenizer_json_gives_the_ids_that_our_wordpiece_gives(tmp_path):
    pytest.importorskip("tokenizers")
    content = CASES[0]["tokenizer"] | {"truncation": {"max_length": 3, "strategy": "LongestFirst"}}
    content["truncation"] |= {"stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    theirs = HuggingFaceTokenizer.from_pretrained(tmp_path)
    ours = WordPiece.from_pretrained(tmp_path)
    assert len(theirs) == len(ours) and theirs.num_ids == ours.num_ids
    for text, ids, decoded in CASES[0]["texts"]:
        assert theirs.encode(text).tolist() == ids  # nothing is cut off
        assert theirs.decode(ids) == decoded
        assert theirs.decode(ids, special=True) == ours.decode(ids, special=True)
    with pytest.raises(VocabularyError, match=f"id {len(ours)} of"):
        theirs.decode([len(ours)])


def test_bytes_of_a_bpe_come_back(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["low lower lowest", "newer wider"], vocab_size=300)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HuggingFaceTokenizer.from_pretrained(tmp_path)
    for text in ("lower", "Grüße 東京 😀", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_damaged_files_are_refused(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(CheckpointError, match="there is no such file"):
        HuggingFaceTokenizer.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no such file(.*\n)*.*check the path"):
        HuggingFaceTokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="not a tokenizer's"):
        HuggingFaceTokenizer.from_pretrained(tmp_path)


def sentences(path):
    """A small model of sentencepiece."""
    sentencepiece = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    lines = [
        f"the {a} {b} of the {c}" for a in "ab" for b in ("cat", "dog") for c in ("hat", "mat")
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=17, minloglevel=2
    )
    path.write_bytes(made.getvalue())
    return path


def test_pieces_of_sentencepiece_end_and_come_back(tmp_path):
    tokenizer = SentencePieceTokenizer(sentences(tmp_path / "spiece.model"))
    ids = tokenizer.encode("the cat of the mat")
    assert ids[-1] == tokenizer.processor.eos_id() and len(tokenizer) == 17
    assert tokenizer.decode(ids) == "the cat of the mat"
    assert (
        tokenizer.encode("the cat", special=False).tolist()
        == tokenizer.encode("the cat")[:-1].tolist()
    )


def test_ids_of_pieces_may_stand_in_a_file_as_marians(tmp_path):
    path = sentences(tmp_path / "source.spm")
    own = SentencePieceTokenizer(path)
    pieces = [own.processor.id_to_piece(k) for k in range(17)]
    vocabulary = {piece: 30 - k for k, piece in enumerate(pieces) if piece != "h"}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = SentencePieceTokenizer(path, tmp_path / "vocab.json")
    assert tokenizer.encode("the cat")[-1] == vocabulary["</s>"] and len(tokenizer) == 31
    assert tokenizer.decode(tokenizer.encode("a cat")) == "a cat"
    assert vocabulary["<unk>"] in tokenizer.encode("z")
    (tmp_path / "vocab.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="does not give ids to <unk> and </s>"):
        SentencePieceTokenizer(path, tmp_path / "vocab.json")


def test_a_file_that_is_no_model_of_sentencepiece_is_refused(tmp_path):
    pytest.importorskip("sentencepiece")
    (tmp_path / "spiece.model").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="not a sentencepiece model"):
        SentencePieceTokenizer(tmp_path / "spiece.model")
    with pytest.raises(
        CheckpointError, match=r"spiece\.none: there is no such file(.*\n)*.*the path"
    ):
        SentencePieceTokenizer(tmp_path / "spiece.none")
