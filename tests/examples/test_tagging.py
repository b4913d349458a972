"""The tagger: sentences in numbers, the baseline, and that it learns what spelling tells."""

import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch.testing import check_batching
from examples.corpora import brown
from examples.corpora.brown import Sentence
from examples.tagging.baseline import MostFrequentTag
from examples.tagging.model import Example, Tagger
from examples.tagging.train import accuracy, main
from examples.words import Lexicon, spelled_share
from tests.marks import exhaustive


def sentence(text, document="a"):
    words, tags = zip(*[token.split("/") for token in text.split()], strict=True)
    return Sentence(words, tags, document, "news")


CORPUS = [sentence("the/at cat/nn sat/vb"), sentence("the/at dog/nn sat/vb"), sentence("cat/vb")]


def test_common_words_are_looked_up_and_others_are_spelled():
    lexicon = Lexicon([one.words for one in CORPUS], min_count=2)
    ids = lexicon.encode(("the", "dog", "sat", "zap"))
    assert [lexicon.words.tokens[k] for k in ids.common] == ["the", "sat"]
    spelled = [[lexicon.characters.tokens[k] for k in word] for word in ids.rare]
    assert spelled == [["d", "o", "g"], ["<unk>", "a", "<unk>"]]
    assert ids.order.tolist() == [0, 2, 1, 3]
    assert spelled_share([ids, lexicon.encode(("cat", "sat"))]) == 2 / 6


def test_the_baseline_knows_each_words_usual_tag():
    baseline = MostFrequentTag([*CORPUS, sentence("cat/nn")])
    assert baseline.tag(("the", "cat", "zap")) == ["at", "nn", "nn"]
    found = accuracy([sentence("the/at zap/vb cat/nn")], [["at", "nn", "nn"]], baseline)
    assert (found.all, found.unknown) == (2 / 3, 0.0)


@pytest.mark.parametrize("crf", [False, True])
def test_sentences_of_rare_and_of_common_words_only_batch(crf):
    lexicon = Lexicon([one.words for one in CORPUS], min_count=2)
    db.seed(0)
    tagger = Tagger(lexicon, 3, 4, 3, 5, 0.0, crf).astype("float64")
    texts = ["the cat dog", "dog zap", "the", "", "sat the cat sat"]
    words = [lexicon.encode(text.split()) for text in texts]
    examples = [(Example(ids, np.arange(ids.order.size) % 3),) for ids in words]
    check_batching(tagger.loss, examples, parameters=tagger.parameters())
    assert [tags.size for tags in tagger.predict(words)] == [3, 2, 1, 0, 4]


def made_up(count):
    """Words with endings that tell their tags; every word of the tenth document is new."""
    rng = np.random.default_rng(0)
    letters, endings = list("bdfgklmnprst"), {"nn": "ion", "vb": "ize", "jj": "ous", "rb": "ly"}
    for k in range(count):
        tags = rng.choice([*endings, "at"], rng.integers(1, 6)).tolist()
        words = [
            "the" if tag == "at" else "".join(rng.choice(letters, 3)) + endings[tag] for tag in tags
        ]
        yield Sentence(tuple(words), tuple(tags), f"d{k % 10}", "news")


@pytest.mark.parametrize("options", [exhaustive([]), ["--crf"]])
def test_endings_of_words_never_seen_are_learned(options, monkeypatch, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(200)))
    sizes = ["--features", "16", "--letters", "8", "--hidden", "8", "--dropout", "0"]
    training = ["--epochs", "4", "--lr", "0.03", "--warmup", "5", "--batch-size", "8", "--quiet"]
    assert main([*sizes, *training, *options]) == 0
    printed = capsys.readouterr().out
    baseline, found = re.findall(r"([\d.]+)% +([\d.]+)%$", printed, re.M)
    assert float(baseline[1]) < 50 and float(found[1]) > 95, printed
    assert ("bi-LSTM, CRF" in printed) == bool(options)


def test_a_mistake_is_one_message_and_status_1(tmp_path, capsys):
    assert main(["--data", str(tmp_path / "none.tgz")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(brown, "load", lambda path: list(made_up(60)))
    common = ["--features", "4", "--letters", "3", "--hidden", "4", "--quiet"]
    output = ["--output", str(tmp_path / "run"), "--epochs", "2"]
    assert main([*common, *output]) == 0
    first = capsys.readouterr().out
    assert main([*common, *output, "--resume"]) == 0
    assert capsys.readouterr().out == first
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 8
