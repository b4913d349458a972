"""A language model of documents: its loss in pieces, and what it makes up."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.models import GPT
from dynbatch.tasks.documents import DocumentTokenizer
from dynbatch.tasks.language_model import (
    DocumentWriter,
    LanguageModelSettings,
    padded_loss,
    padded_piece,
)
from dynbatch.tasks.options import given
from dynbatch.tasks.task import Parts


def made(**more):
    settings = LanguageModelSettings(longest=20, overlap=5, width=8, layers=2, heads=2, **more)
    return DocumentWriter.begin(Parts(["abc"], [], []), settings)


def test_a_piece_counts_only_what_no_piece_before_it_has():
    model = made().model
    ids = DocumentTokenizer(None).whole("an old joke")
    with db.Graph(grad=False) as graph:
        whole, first, rest = graph.values(
            [model.loss(graph, ids), model.loss(graph, ids[:6]), model.loss(graph, ids, 5)]
        )
    assert whole == pytest.approx(first + rest, rel=1e-5) and rest > 0


def test_sampling_draws_from_the_distribution_and_ends_at_the_mark():
    writer = made()
    model, mark = writer.model, writer.model.mark
    rng = np.random.default_rng(0)
    for parameter in model.parameters():
        parameter.assign(np.zeros(parameter.shape))
    model.encoder.norm.weight.value[0] = -(7**-0.5)  # each row (x, 0, …) with x < 0 is (-√7, …)
    model.tokens.weight.value[:, 0] = -100  # normalised, and so (1, 0, …): logits are these
    model.tokens.weight.value[[97, 98, mark], 0] = np.log([0.6, 0.2, 0.2])
    found = writer.sample(150, 8, rng)
    tokens = list("".join(found))
    assert set(tokens) == {"a", "b"} and max(map(len, found)) == 8
    assert tokens.count("a") / len(tokens) == pytest.approx(0.75, abs=0.06)
    assert np.mean([text == "" for text in found]) == pytest.approx(0.2, abs=0.09)


def test_the_padded_loss_is_the_loss():
    model = made().model.astype("float64")
    given = [(np.arange(9), 0), (np.arange(5, 18), 4), (np.arange(2), 0)]
    with db.Graph(dtype="float64", grad=False) as graph:
        padded = [padded_loss(model, graph, *padded_piece(piece, (20,))) for piece in given]
        own = graph.values([model.loss(graph, *piece) for piece in given])
        assert np.array(graph.values(padded)) == pytest.approx(np.array(own), rel=1e-12)


def test_an_older_run_whose_model_has_a_table_of_places_is_read():
    kept = {"layers": 1, "heads": 2, "dropout": 0.0, "overlap": 5}
    extra = {"description": {"characters": None, **kept}}
    old = GPT(257, 20, width=8, layers=1, heads=2)
    shapes = {f"model/{name}": each.shape for name, each in old.named_parameters()}
    read = DocumentWriter.described(SimpleNamespace(path="run", extra=extra, shapes=shapes))
    assert read.model.places.weight.shape == (20, 8) and read.model.positions == 20
    assert {name: each.shape for name, each in read.model.named_parameters()} == {
        name: each.shape for name, each in old.named_parameters()
    }
    assert made().model.places is None and made().description()["longest"] == 20


def test_an_alphabet_is_that_of_all_parts_and_latin_text_is_read_by_bytes():
    parts = Parts(["жук", "кот"], ["ёж"], [])
    small = {"longest": 20, "overlap": 5, "width": 8, "layers": 1, "heads": 2}
    by_default = DocumentWriter.begin(parts, LanguageModelSettings(**small))
    assert by_default.tokenizer.characters == "жкотуё"
    assert len(by_default.examples(["кот"])[0].ids) == 5
    assert made().tokenizer.characters is None
    asked = LanguageModelSettings(**small, units="bytes")
    assert DocumentWriter.begin(parts, asked).tokenizer.characters is None


def test_a_sample_holds_nothing_that_a_terminal_would_obey(monkeypatch):
    writer = made()
    monkeypatch.setattr(writer, "sample", lambda *given: ["a\tb\x1b[2J", "c"])
    lines = writer.samples([], LanguageModelSettings(), np.random.default_rng(0))
    assert lines == ["a       b�[2J", "%", "c", "%"]


def test_the_size_of_mini_batches_is_given_in_tokens_alone(capsys):
    assert given(LanguageModelSettings, ["--max-tokens", "9"], "train", "") == {"max_tokens": 9}
    with pytest.raises(SystemExit):
        given(LanguageModelSettings, ["--batch-size", "9"], "train", "")
    assert "unrecognized arguments: --batch-size" in capsys.readouterr().err
