"""The models and tokenizers that `dynbatch generate` takes, and those that it refuses."""

import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from dynbatch.commands import loading
from dynbatch.commands.main import main
from dynbatch.errors import CheckpointError, DataError
from dynbatch.generation.config import GenerationConfig
from dynbatch.models import Linear
from dynbatch.text import ByteTokenizer, WordPiece
from dynbatch.train import save_checkpoint

FIXTURES = Path(__file__).parents[1] / "models" / "pretrained" / "fixtures"


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("gpt2", (2,)), ("llama", (2,)), ("t5", (1,)), ("marian", (0,)), ("bart", (2,)),
        ("mistral", (2,)), ("qwen3", None), ("qwen3-next", None), ("gemma3", (1,)),
    ],
)  # fmt: skip
def test_each_family_that_writes_is_found_by_its_model_type(name, ends):
    found = loading.load(str(FIXTURES / name), tokenizer="ids")
    assert type(found.model).__name__.lower() == name.replace("-", "")
    assert found.config.eos_token_id == ends
    assert found.tokenizer.decode(found.tokenizer.encode(" 3 14  9 ")) == "3 14 9"


def test_families_that_do_not_write_are_refused():
    with pytest.raises(CheckpointError, match="'bert', which does not write text"):
        loading.load(str(FIXTURES / "bert"), tokenizer="ids")


def test_what_is_not_there_is_said():
    with pytest.raises(CheckpointError, match="nowhere: there is no such file or folder"):
        loading.load("nowhere")
    with pytest.raises(CheckpointError, match=r"fix:  .*/gpt2\?$"):
        loading.load(str(FIXTURES / "gpt3"))
    with pytest.raises(CheckpointError, match=r"no checkpoint(.|\n)*fix:  .* folder: .*/gpt2$"):
        loading.load(str(FIXTURES / "gpt2" / "config.json"))
    with pytest.raises(CheckpointError, match="gpt2: it has no tokenizer"):
        loading.load(str(FIXTURES / "gpt2"))
    with pytest.raises(DataError, match="'3 x' is not a row of ids"):
        loading.IdTokenizer().encode("3 x")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "gpt2"
    shutil.copytree(FIXTURES / "gpt2", path)
    return path


def test_wordpiece_needs_no_library(folder):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    assert isinstance(loading.load(str(folder)).tokenizer, WordPiece)


class LettersTokenizer:
    """Stands in for `tokenizers.Tokenizer`."""

    @classmethod
    def from_file(cls, path):
        assert json.loads(Path(path).read_text()) == {}
        return cls()

    def no_truncation(self):
        pass

    def no_padding(self):
        pass

    def get_vocab_size(self):
        return 40

    def get_vocab(self):
        return {letter: ord(letter) - ord("a") for letter in "abcdefghi"}

    def get_added_tokens_decoder(self):
        return {}

    def encode(self, text, add_special_tokens):
        return types.SimpleNamespace(ids=[ord(one) - ord("a") for one in text])

    def decode(self, ids, skip_special_tokens):
        return "".join([chr(ord("a") + one) for one in ids])


def test_a_tokenizer_json_is_read_by_the_library(folder, monkeypatch, capsys):
    (folder / "tokenizer.json").write_text("{}")
    standing_in = types.SimpleNamespace(Tokenizer=LettersTokenizer)
    monkeypatch.setitem(sys.modules, "tokenizers", standing_in)
    assert main(["generate", str(folder), "def", "--max-new-tokens", "4", "--greedy"]) == 0
    by_letters = capsys.readouterr().out.strip()
    options = ["--max-new-tokens", "4", "--greedy", "--tokenizer", "ids"]
    assert main(["generate", str(folder), "3 4 5", *options]) == 0
    ids = capsys.readouterr().out.split()
    assert [ord(one) - ord("a") for one in by_letters] == [int(one) for one in ids]


def test_where_the_library_is_missing_it_is_said_what_to_install(folder, monkeypatch, capsys):
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["generate", str(folder), "x"]) == 1
    assert "pip install 'dynbatch[text]'" in capsys.readouterr().err


OWN = """
from dynbatch import models
from dynbatch.generation.config import GenerationConfig
from dynbatch.text import ByteTokenizer
from dynbatch.train import load_checkpoint

class Bigram(models.Module):
    def __init__(self):
        self.table = models.Embedding(256, 256)
    def __call__(self, graph, ids):
        return self.table(graph, ids)

def load(path):
    model = Bigram()
    load_checkpoint(path, model)
    return model, ByteTokenizer(), GenerationConfig(max_new_tokens=3)

def half(path):
    return Bigram()
"""


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """The checkpoint of a user's own model: after each byte comes the next."""
    (tmp_path / "own_bigram.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    import own_bigram

    model = own_bigram.Bigram()
    model.table.weight.assign(np.roll(np.eye(256), 1, axis=1))
    save_checkpoint(tmp_path / "run" / "model.safetensors", model, extra={"loader": "os:remove"})
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["run", "run/model.safetensors"])
def test_a_checkpoint_of_ones_own_is_made_by_a_loader(name, checkpoint, capsys):
    assert main(["generate", name, "abc", "--loader", "own_bigram:load"]) == 0
    assert capsys.readouterr().out == "def\n"


def test_the_best_checkpoint_of_a_run_comes_before_its_last(checkpoint, capsys):
    import own_bigram

    model = own_bigram.Bigram()
    model.table.weight.assign(np.roll(np.eye(256), -1, axis=1))
    save_checkpoint(checkpoint / "model.best.safetensors", model)
    assert main(["generate", "run", "abc", "--loader", "own_bigram:load"]) == 0
    assert capsys.readouterr().out == "ba`\n"


def test_a_loader_that_returns_something_else_is_refused(checkpoint, capsys):
    assert main(["generate", "run", "abc", "--loader", "own_bigram:half"]) == 1
    assert "rule: (model, tokenizer, GenerationConfig)" in capsys.readouterr().err
    assert main(["generate", "run", "abc", "--loader", "own_bigram:none"]) == 1
    assert "--loader own_bigram:none: module" in capsys.readouterr().err


def test_a_checkpoint_runs_no_code_of_its_own_choice(checkpoint, tmp_path, capsys):
    assert main(["generate", "run", "abc"]) == 1
    said = capsys.readouterr().err
    assert "no code of its own choice" in said and "give --loader package.module:function" in said
    assert (checkpoint / "model.safetensors").exists()
    save_checkpoint(tmp_path / "plain.safetensors", Linear(2, 2))
    assert main(["generate", "plain.safetensors", "abc"]) == 1
    assert "does not say how its model is made" in capsys.readouterr().err


def test_a_converted_checkpoint_writes_what_its_folder_writes(folder, tmp_path, capsys):
    ids = ["3 4 5", "--tokenizer", "ids", "--max-new-tokens", "6", "--greedy", "--quiet"]
    assert main(["generate", str(folder), *ids]) == 0
    wanted = capsys.readouterr().out
    assert main(["convert", str(folder), str(tmp_path / "run")]) == 0
    (tmp_path / "run" / "generation_config.json").unlink()  # config.json's fields are kept, too
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), *ids]) == 0
    assert capsys.readouterr().out == wanted
    assert main(["convert", str(FIXTURES / "bert"), str(tmp_path / "bert")]) == 0
    assert main(["generate", str(tmp_path / "bert"), *ids]) == 1
    assert "a BertForMaskedWords, which writes no text" in capsys.readouterr().err


def test_bytes_are_a_tokenizer_for_any_model(folder):
    found = loading.load(str(folder), tokenizer="bytes")
    assert isinstance(found.tokenizer, ByteTokenizer)
    assert found.config == GenerationConfig(eos_token_id=2, bos_token_id=2)
