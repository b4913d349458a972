"""`dynbatch generate` on a fine-tuned encoder."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.commands.main import main
from dynbatch.models.pretrained import BertConfig, BertForClassification
from dynbatch.text import WordPiece
from dynbatch.train import save_checkpoint

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = BertConfig(
    vocab_size=8, intermediate_size=8, id2label={"0": "no", "1": "yes", "2": "maybe"}, **SIZES
)
TEXTS = ["the cat", "sat", "the the sat cat the"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """One model, as a run in "run" and as a folder of Hugging Face in "folder"."""
    monkeypatch.chdir(tmp_path)
    model = BertForClassification(CONFIG, rng=3).eval()
    model.classifier.weight.value[:] *= 100
    model.save_pretrained("folder")
    save_checkpoint("run/model.safetensors", model)
    for folder in ("folder", "run"):
        (tmp_path / folder / "vocab.txt").write_text("\n".join(PIECES))
    return model


@pytest.mark.parametrize("name", ["run", "run/model.safetensors", "folder"])
def test_a_fine_tuned_encoder_gives_each_line_its_label(name, model, capsys):
    with db.Graph(grad=False) as graph:
        scores = graph.values([model.logits(graph, WordPiece(PIECES).encode(x)) for x in TEXTS])
    wanted = [("no", "yes", "maybe")[row.argmax()] for row in scores]
    assert main(["generate", name, *TEXTS]) == 0
    assert capsys.readouterr().out.split() == wanted and len(set(wanted)) > 1
    assert main(["generate", name, *TEXTS, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for one, row in zip(found, scores, strict=True):
        shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert list(one["probabilities"].values()) == pytest.approx(shares.tolist(), rel=1e-5)


def test_its_tokenizer_can_be_in_another_folder_and_it_chooses_no_tokens(model, capsys):
    shutil.move("run/vocab.txt", "vocab.txt")
    assert main(["generate", "run", "the cat"]) == 1
    assert "it has no tokenizer" in capsys.readouterr().err
    assert main(["generate", "run", "the cat", "--tokenizer", "."]) == 0
    assert capsys.readouterr().out.strip() in ("no", "yes", "maybe")
    assert main(["generate", "folder", "the cat", "--top-k", "3"]) == 1
    assert "is a model for fine-tuning, which chooses no tokens" in capsys.readouterr().err


def test_a_line_longer_than_the_model_reads_is_cut_and_said_by_name(model, capsys, monkeypatch):
    short = replace(CONFIG, max_position_embeddings=6)
    monkeypatch.chdir("folder")
    cut = BertForClassification(short, rng=3).eval()
    cut.classifier.weight.value[:] *= 100
    save_checkpoint("model.safetensors", cut)
    with db.Graph(grad=False) as graph:
        wanted = cut.logits(graph, [2, 5, 6, 7, 5, 3]).value.argmax()
    Path("config.json").unlink()
    assert main(["generate", ".", "the cat sat the the the", "sat"]) == 0
    told = capsys.readouterr()
    assert told.out.split()[0] == ("no", "yes", "maybe")[wanted]
    assert told.err.count("warning") == 1 and "'the cat sat the the the'… has 8 tokens" in told.err
