"""The tagging task: its model batches, its numbers beside the baseline's, its checkpoints."""

import re
from dataclasses import replace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import CheckpointError
from dynbatch.tasks.baselines import MostFrequentTag
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.tagging import Tagging, TaggingSettings, accuracy
from dynbatch.tasks.task import Parts
from dynbatch.testing import check_batching
from dynbatch.text import TaggedSentence
from dynbatch.train import read_checkpoint, save_checkpoint

SMALL = TaggingSettings(min_count=2, features=4, letters=3, hidden=5, dropout=0.0)


def sentence(text):
    words, tags = zip(*[token.split("/") for token in text.split()], strict=True)
    return TaggedSentence(words, tags)


CORPUS = [
    sentence(text) for text in ("the/at cat/nn sat/vb ./.", "the/at dog/nn sat/vb ./.", "cat/vb")
]


def begun(settings=SMALL, seed=0):
    db.seed(seed)
    return Tagging.begin(Parts(CORPUS, [], []), settings)


def test_accuracies_are_of_all_words_and_of_unknown_ones():
    baseline = MostFrequentTag(CORPUS)
    found = accuracy([sentence("the/at zap/vb cat/nn")], [["at", "nn", "nn"]], baseline)
    assert (found.all, found.unknown) == (2 / 3, 0.0)
    assert accuracy([sentence("cat/nn")], [["nn"]], baseline).unknown is None


@pytest.mark.parametrize("crf", [False, True])
def test_sentences_of_rare_and_of_common_words_only_batch(crf):
    task = begun(replace(SMALL, crf=crf))
    task.model.astype("float64")
    texts = [text.split() for text in ("the cat dog", "dog zap", "the", "", "sat the cat sat")]
    tagged = [TaggedSentence(tuple(words), ("nn",) * len(words)) for words in texts]
    examples = task.examples(tagged)
    check_batching(
        task.model.loss, [(one,) for one in examples], parameters=task.model.parameters()
    )
    assert [len(tags) for tags in task.tag(texts)] == [3, 2, 1, 0, 4]
    assert [task.num_tokens(one) for one in examples] == [3, 2, 1, 0, 4]


def test_a_tag_never_seen_is_wrong_and_a_test_is_told_beside_the_baseline():
    task = begun()
    test = [sentence("the/at zap/xx")]
    found = task.evaluate(test)
    assert found["accuracy"] <= 0.5 and found["accuracy of spelled words"] == 0.0
    assert task.told(found, test) == (
        f"validation: {found['accuracy']:.2%} of the tags are right, of rare words 0.00%"
    )
    assert "rare" not in task.told(task.evaluate([sentence("the/at")]), [])
    rows = re.findall(
        r"(most frequent tag|bi-LSTM, softmax) +([\d.]+)% +([\d.]+)%",
        task.report(Parts(CORPUS, [], test)),
    )
    assert rows == [
        ("most frequent tag", "50.00", "0.00"),
        ("bi-LSTM, softmax", f"{found['accuracy']:.2%}"[:-1], "0.00"),
    ]


def test_a_wrong_tag_is_shown_with_the_right_one():
    task = begun()
    task.tag = lambda sentences: [["at", "vb"] for _ in sentences]
    assert task.samples([sentence("the/at cat/nn")], SMALL, None) == ["the/at cat/vb[nn]"]
    task.tag = lambda sentences: [["at"] * 99]
    lines = task.samples([sentence("the/at " * 99)], SMALL, None)
    assert len(lines) == 2 and lines[1].endswith("the/at …") and max(map(len, lines)) <= 76
    assert task.shown(sentence("the/at cat/nn")) == "the/at cat/nn"
    assert task.sizes(CORPUS) == "3 sentences, 9 words (longest sentence 4), 4 tags"


def test_marks_are_cut_off_from_words_of_a_line():
    task = begun()
    assert task.words_of("the cat. sat zap! .") == ["the", "cat", ".", "sat", "zap!", "."]
    (found,) = task.label(["the cat."])
    assert found["text"] == "the cat." and found["words"] == ["the", "cat", "."]
    assert task.line(found) == " ".join(
        [f"{word}/{tag}" for word, tag in zip(found["words"], found["tags"], strict=True)]
    )


@pytest.mark.parametrize("crf", [False, True])
def test_a_checkpoint_makes_the_same_tagger(tmp_path, crf):
    task, path = begun(replace(SMALL, crf=crf)), tmp_path / "model.safetensors"
    save_checkpoint(path, task.model, extra={"description": task.description()})
    again = Tagging.described(read_checkpoint(path))
    again.model.load_state_dict(task.model.state_dict())
    assert again.label(["the dog sat.", ""]) == task.label(["the dog sat.", ""])


def test_weights_that_are_not_finite_are_told_when_a_task_is_loaded(tmp_path, recwarn):
    task, path = begun(), tmp_path / "model.safetensors"
    extra = {"task": Tagging.name, "description": task.description()}
    save_checkpoint(path, task.model, extra=extra)
    load_task(path)
    assert not recwarn
    name, parameter = next(iter(task.model.named_parameters()))
    parameter.value[0, 1] = np.nan
    save_checkpoint(path, task.model, extra=extra)
    with pytest.warns(UserWarning, match=f"1 of the .* parameter '{name}' are NaN") as told:
        load_task(path)
    assert told[0].filename == __file__


@pytest.mark.parametrize("damage", [{"tags": ["nn"]}, {"words": [1, 2]}, {"characters": "abc"}])
def test_a_damaged_description_is_refused(tmp_path, damage):
    task, path = begun(), tmp_path / "model.safetensors"
    save_checkpoint(path, task.model, extra={"description": {**task.description(), **damage}})
    with pytest.raises(CheckpointError, match="damaged: its description of the model"):
        Tagging.described(read_checkpoint(path))
    save_checkpoint(path, task.model)
    with pytest.raises(CheckpointError, match="damaged: its description of the model"):
        Tagging.described(read_checkpoint(path))


def test_the_numbers_of_tags_are_those_of_the_description():
    task = begun()
    assert task.tags == sorted(task.tags)
    assert task.examples(CORPUS[:1])[0].tags.tolist() == [
        task.tags.index(tag) for tag in CORPUS[0].tags
    ]
    assert task.examples(CORPUS[:1])[0].tags.dtype == np.int64
