"""The front of the example's data: corpora by name, and their pairs in ids."""

import pytest

from dynbatch.errors import DataError
from examples.seq2seq import data
from examples.seq2seq.corpus import Example
from examples.seq2seq.data import build_vocabularies, load_corpus, number

EXAMPLES = [Example(("b", "a"), (("x",), ("x", "y"))), Example(("a",), (("y",),))]


def test_a_built_in_corpus_is_found_by_name():
    corpus = load_corpus("scan-length")
    assert (corpus.name, len(corpus.test)) == ("scan-length", 3_920)


def test_a_file_is_a_corpus_held_out_by_its_sources(tmp_path):
    path = tmp_path / "numbers.tsv"
    path.write_text("".join(f"w{number}\tt {number}\n" for number in range(200)))
    corpus = load_corpus(str(path), target_units="characters")

    assert (corpus.name, corpus.token) == ("numbers", "character")
    assert len(corpus.train) + len(corpus.dev) + len(corpus.test) == 200
    assert len(corpus.train) > 150 and corpus.dev and corpus.test
    assert corpus.train[0].references[0][:2] == ("t", " ")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match=r"wmt: neither a file nor a corpus.*\n.*scan-simple"):
        load_corpus("wmt")


def test_every_reference_makes_a_pair_of_ids_without_marks():
    source, target = build_vocabularies(EXAMPLES)
    pairs = number(EXAMPLES, source, target)

    assert [source.decode(pair.source) for pair in pairs] == [["b", "a"], ["b", "a"], ["a"]]
    assert [target.decode(pair.target) for pair in pairs] == [["x"], ["x", "y"], ["y"]]
    assert [pair.num_tokens for pair in pairs] == [3, 4, 2]


def test_vocabularies_count_tokens_of_both_sides_apart():
    source, target = build_vocabularies(EXAMPLES, min_count=2)
    assert source.tokens[3:] == ["a"]
    assert target.tokens[3:] == ["x", "y"]


def test_messages_with_several_translations_are_one_example(monkeypatch):
    pairs = [(("Save",), ("Speichern",)), (("Save",), ("Sichern",)), (("Cut", "."), ("Ab", "."))]
    monkeypatch.setattr(data.libreoffice, "load", lambda: pairs)
    corpus = load_corpus("libreoffice")
    examples = [*corpus.train, *corpus.dev, *corpus.test]
    assert {each.source: each.references for each in examples} == {
        ("Save",): (("Speichern",), ("Sichern",)),
        ("Cut", "."): (("Ab", "."),),
    }
