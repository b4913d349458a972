"""SCAN's splits have the published sizes and rules."""

from dynbatch.demo.scan import simple_split
from examples.corpora import scan


def test_the_simple_split_is_that_of_the_package_and_has_no_development_set():
    corpus, (train, test) = scan.load("simple"), simple_split()
    assert corpus.dev == []
    for part, pairs in ((corpus.train, train), (corpus.test, test)):
        assert [
            (tuple(each.source.split()), tuple(each.references[0].split())) for each in part
        ] == pairs


def test_the_length_split_tests_on_longer_outputs_than_it_trains_on():
    corpus = scan.load("length")
    assert (len(corpus.train), len(corpus.test)) == (16_990, 3_920)
    assert max(len(example.references[0].split()) for example in corpus.train) == 22
    assert min(len(example.references[0].split()) for example in corpus.test) == 24


def test_the_jump_split_trains_on_the_bare_jump_only():
    corpus = scan.load("addprim_jump")
    assert (len(corpus.train), len(corpus.test)) == (14_670, 7_706)
    with_jump = [example.source for example in corpus.train if "jump" in example.source]
    assert with_jump == ["jump"] * 1_467
    assert all("jump" in example.source for example in corpus.test)
