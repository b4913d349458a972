"""The tokenizer of a checkpoint's folder, by its files."""

import json

import numpy as np
import pytest

from dynbatch.errors import CheckpointError
from dynbatch.text import WordPiece, folder
from dynbatch.text.folder import TranslationTokenizer, copy_tokenizer, load_tokenizer


class NamedTokenizer:
    """Stands in for the tokenizers of other libraries: it encodes a text as its length."""

    def __init__(self, *paths):
        self.names = [path.name for path in paths]

    @classmethod
    def from_pretrained(cls, place):
        return cls(place)

    def encode(self, text):
        return np.array([len(text)])

    def decode(self, ids):
        return f"{len(ids)} ids of {self.names[0]}"


@pytest.fixture(autouse=True)
def no_library_is_needed(monkeypatch):
    for name in ("HuggingFaceTokenizer", "SentencePieceTokenizer"):
        monkeypatch.setattr(folder, name, NamedTokenizer)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["tokenizer.json", "spiece.model"], ["folder"]),
        (["spiece.model"], ["spiece.model"]),
        (["tokenizer.model"], ["tokenizer.model"]),
    ],
)
def test_the_files_tell_the_tokenizer(files, names, tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    for name in files:
        (place / name).write_text("")
    assert load_tokenizer(place).names == names


def test_a_translator_reads_sources_and_writes_targets(tmp_path):
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_text("")
    found = load_tokenizer(tmp_path)
    assert isinstance(found, TranslationTokenizer)
    assert found.encode("four").tolist() == [4]
    assert found.decode([1, 2]) == "2 ids of target.spm"
    (tmp_path / "target.spm").unlink()
    with pytest.raises(CheckpointError, match=r"target\.spm: there is no such file"):
        load_tokenizer(tmp_path)


def test_wordpiece_is_our_own(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe")
    (tmp_path / "tokenizer.json").write_text("")
    with pytest.raises(CheckpointError, match="not JSON"):  # it comes first, and is read
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert isinstance(load_tokenizer(tmp_path), WordPiece)


def test_a_tokenizer_of_more_ids_than_the_table_has_rows_is_refused(tmp_path):
    pieces = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "[PAD]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    for rows, is_enough in ((4, False), (5, True), (None, True)):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
        if is_enough:  # no text has a [PAD] or [MASK] of its own accord
            assert load_tokenizer(tmp_path).encode("b").tolist() == [1, 4, 2]
            continue
        with pytest.raises(CheckpointError, match=r"(?s)ids up to 4, .*table has 4 rows.*resize_"):
            load_tokenizer(tmp_path)


def test_a_folder_without_one_is_refused_with_all_names(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither vocab\.txt nor tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_is_copied_with_how_tokens_are_chosen(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    (tmp_path / "generation_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("weights")
    target = tmp_path / "runs" / "mine"
    assert copy_tokenizer(tmp_path, target) == ["vocab.txt", "generation_config.json"]
    assert sorted([path.name for path in target.iterdir()]) == [
        "generation_config.json", "vocab.txt",
    ]  # fmt: skip
    assert load_tokenizer(str(target)).encode("the").tolist() == [2, 4, 3]


def test_a_file_is_no_place_for_a_tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\n")
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match=r"model: a file; (.|\n)*such as that of the file"):
        copy_tokenizer(tmp_path, tmp_path / "model")
