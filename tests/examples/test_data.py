"""The front of the example's data: corpora by name, and their pairs in ids."""

import pytest

from dynbatch.errors import DataError
from examples.seq2seq import data
from examples.seq2seq.data import load_corpus


def test_a_built_in_corpus_is_found_by_name():
    corpus = load_corpus("scan-length")
    assert (corpus.name, len(corpus.parts.test)) == ("scan-length", 3_920)


def test_a_file_is_a_corpus_held_out_by_its_sources(tmp_path):
    path = tmp_path / "numbers.tsv"
    path.write_text("".join(f"w{number}\tt {number}\n" for number in range(200)))
    corpus = load_corpus(str(path), target_units="characters")

    assert (corpus.name, corpus.token) == ("numbers", "character")
    assert sum(map(len, (corpus.parts.train, corpus.parts.dev, corpus.parts.test))) == 200
    assert len(corpus.parts.train) > 150 and corpus.parts.dev and corpus.parts.test
    assert corpus.target_units == "characters"


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match=r"wmt: neither a file nor a corpus.*\n.*scan-simple"):
        load_corpus("wmt")


def test_messages_with_several_translations_are_one_example(monkeypatch):
    pairs = [(("Save",), ("Speichern",)), (("Save",), ("Sichern",)), (("Cut", "."), ("Ab", "."))]
    monkeypatch.setattr(data.libreoffice, "load", lambda: pairs)
    corpus = load_corpus("libreoffice")
    examples = [*corpus.parts.train, *corpus.parts.dev, *corpus.parts.test]
    assert {each.source: each.references for each in examples} == {
        "Save": ("Speichern", "Sichern"),
        "Cut .": ("Ab .",),
    }
