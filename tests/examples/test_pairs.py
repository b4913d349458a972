"""Pairs of the seq2seq example: corpora by name, and files."""

import pytest

from dynbatch.errors import DataError
from examples.corpora import libreoffice, pairs


def test_a_built_in_corpus_is_found_by_name():
    assert len(pairs.load("scan-length").test) == 3_920


def test_a_file_is_a_corpus_held_out_by_its_sources(tmp_path):
    path = tmp_path / "numbers.tsv"
    path.write_text("".join(f"w{number}\tt {number}\n" for number in range(200)))
    corpus = pairs.load(str(path))
    assert sum(map(len, (corpus.train, corpus.dev, corpus.test))) == 200
    assert len(corpus.train) > 150 and corpus.dev and corpus.test


def test_a_limit_draws_the_same_examples_each_time(tmp_path):
    path = tmp_path / "numbers.tsv"
    path.write_text("".join(f"w{number}\tt {number}\n" for number in range(200)))
    whole, drawn, again = [pairs.load(str(path), limit) for limit in (None, 20, 20)]
    assert drawn.train == again.train and len(drawn.train) == 20
    assert drawn.train != whole.train[:20] and set(drawn.train) <= set(whole.train)
    assert drawn.test == whole.test


@pytest.mark.parametrize("pair", ["padding\tx", "hello\ty", "aardvark\tz"])  # dev, test, train
def test_one_pair_is_trained_on_whatever_part_it_would_be(tmp_path, pair):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{pair}\n")
    assert len(pairs.load(str(path)).train) == 1


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match=r"wmt: neither a file nor a corpus.*\n.*scan-simple"):
        pairs.load("wmt")


def test_messages_with_several_translations_are_one_example(monkeypatch):
    messages = [(("Save",), ("Speichern",)), (("Save",), ("Sichern",)), (("Cut", "."), ("Ab", "."))]
    monkeypatch.setattr(libreoffice, "load", lambda: messages)
    corpus = pairs.load("libreoffice")
    examples = [*corpus.train, *corpus.dev, *corpus.test]
    assert {each.source: each.references for each in examples} == {
        "Save": ("Speichern", "Sichern"),
        "Cut .": ("Ab .",),
    }
