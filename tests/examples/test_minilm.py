"""MiniLM's commands on a tiny model of their form, and on the published one where it is there."""

import re
import zipfile

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import DataError
from dynbatch.models.pretrained import Bert, BertConfig
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.corpora.fetching import cache_folder
from examples.minilm import finetune, similarity, weights

pytestmark = pytest.mark.usefixtures("same_threads")

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e . !".split()


@pytest.fixture
def folder(tmp_path):
    """A BERT of one layer, with a vocabulary."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(WORDS), intermediate_size=12, max_position_embeddings=40, **sizes
    )
    Bert(config, rng=0).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert/vocab.txt").write_text("\n".join(WORDS))
    return str(tmp_path / "bert")


def test_a_sentence_is_its_own_neighbour(folder, tmp_path, capsys):
    path = tmp_path / "among.txt"
    path.write_text("a b c\n\nd e !\nb b .\na a a a a\n")
    assert similarity.main(["B b.", "--among", str(path), "--model", folder]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^B b\.\n  1\.0000  b b \.$", printed, re.M), printed
    assert "4 sentences, " in printed and printed.count("  ") > 3


def test_vectors_are_normalised_means_of_tokens_however_batched(folder):
    model = similarity.SentenceVectors(weights.folder(folder))
    texts = ["a", "b c d", "", "e e e e !"]
    together = model(texts)
    assert np.linalg.norm(together, axis=1) == pytest.approx(1)
    assert np.concatenate([model([text]) for text in texts]) == pytest.approx(together, abs=1e-6)
    with db.Graph(grad=False) as graph:
        mean = model.bert(graph, [2, 6, 7, 8, 3]).value.mean(axis=0)
    assert together[1] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_what_cannot_be_read_says_why(folder, tmp_path, capsys):
    path = tmp_path / "among.txt"
    for text, says in (
        ("\n", "no line with text"),
        ("a " * 39, "has 41 tokens.\n  rule: at most 40"),
    ):
        path.write_text(text)
        assert similarity.main(["--among", str(path), "--model", folder]) == 1
        assert says in capsys.readouterr().err
    assert similarity.main(["--among", str(tmp_path / "none"), "--model", folder]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_fine_tuning_is_told_beside_baselines_and_the_model_as_it_is(monkeypatch, folder, capsys):
    rng = np.random.default_rng(0)
    words = {"news": "a b c", "humor": "a b d", "lore": "c d e"}
    made_up = [
        Sentence(tuple(rng.choice(words[name].split(), rng.integers(4, 20))), (), f"d{k:03}", name)
        for k, name in enumerate(rng.choice(list(words), 120))
    ]
    monkeypatch.setattr(brown, "load", lambda path: made_up)
    options = ["--model", folder, "--sentences", "1", "--epochs", "3", "--lr", "0.01"]
    assert finetune.main([*options, "--warmup", "3", "--dropout", "0", "--quiet"]) == 0
    printed = capsys.readouterr().out
    shares = [float(x) for x in re.findall(r"([\d.]+)%$", printed, re.M)]
    assert len(shares) == 4, printed
    majority, _, _, found = shares
    assert majority < 60 < 90 < found, printed


def test_other_weights_are_refused_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    archives = tmp_path / "dynbatch"
    archives.mkdir()
    with zipfile.ZipFile(archives / weights.ARCHIVE.name, "w") as archive:
        archive.writestr(f"{weights.PACKAGE}/model/model.safetensors", b"other")
    with pytest.raises(DataError, match="not the published weights"):
        weights.folder()
    assert [path.name for path in archives.iterdir()] == [weights.ARCHIVE.name]


def test_the_published_cosines_are_printed(capsys):
    if not (cache_folder() / f"{weights.PACKAGE}-{weights.VERSION}").exists():
        pytest.skip("not fetched: python -m examples.minilm.similarity")
    assert similarity.main(["--threads", str(db.num_threads())]) == 0
    rows = re.findall(r"^([ -]?0\.\d{4})  +(0\.\d{4})  ", capsys.readouterr().out, re.M)
    assert len(rows) == 3
    assert all(abs(float(found) - float(published)) <= 1e-4 for found, published in rows)
