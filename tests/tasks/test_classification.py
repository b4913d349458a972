"""The classification task: its model batches, its numbers beside baselines', its checkpoints."""

from dataclasses import replace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.errors import CheckpointError, DataError
from dynbatch.tasks.classification import Classification, ClassificationSettings
from dynbatch.tasks.task import Parts
from dynbatch.tasks.text_labelling import macro_f1
from dynbatch.testing import check_batching
from dynbatch.text import LabelledText
from dynbatch.train import read_checkpoint, save_checkpoint

SMALL = ClassificationSettings(min_count=1, features=4, filters=3, dropout=0.0)
KNOWN = [
    LabelledText(text, label)
    for text, label in [("You won!", "spam"), ("See you.", "ham"), ("You see me.", "ham")]
]


def begun(settings=SMALL):
    db.seed(0)
    return Classification.begin(Parts(KNOWN, [], []), settings)


def test_texts_of_any_length_batch():
    task = begun()
    task.model.astype("float64")
    texts = [LabelledText(text, "ham") for text in ("", "you", "You see me. " * 4, "zap")]

    def loss(graph, example):
        return task.loss(graph, task.model, example)

    examples = task.examples(texts)
    check_batching(loss, [(one,) for one in examples], parameters=task.model.parameters())
    assert [one.ids.size for one in examples] == [0, 1, 16, 1] and examples[0].label == 0
    assert [task.num_tokens(one) for one in examples] == [1] * 4


def test_f1_is_the_mean_over_labels_wanted_and_found():
    assert macro_f1(["a", "a", "b"], ["a", "a", "c"]) == pytest.approx(1 / 3)
    assert macro_f1([], []) == 0.0


def test_a_test_is_told_beside_the_baselines_with_what_is_mixed_up():
    task = begun()
    test = [LabelledText("See!", "ham"), LabelledText("You", "new")]
    task.scores = lambda texts: [np.array([0.0, 1.0])] * len(texts)  # spam
    assert task.evaluate(test) == {"accuracy": 0.0, "macro-F1": 0.0}
    task.scores = lambda texts: [np.array([1.0, 0.0])] * len(texts)  # ham
    assert task.evaluate(test) == {"accuracy": 0.5, "macro-F1": pytest.approx(1 / 3)}
    rows = [line.split("  ") for line in task.report(Parts(KNOWN, [], test)).splitlines()]
    assert [row[0] for row in rows[1:]] == [
        "always ham", "naive Bayes", "text CNN", "mixed up most:", ""
    ]  # fmt: skip
    assert rows[5] == ["", "new taken for ham (1)"]
    assert [row[-1] for row in rows[1:4:2]] == ["33.33%"] * 2
    assert task.samples(test, SMALL, None) == ["ham: See!", "ham[new]: You"]


def test_what_there_is_to_learn_from_is_told_on_a_line():
    assert Classification.sizes(KNOWN) == "3 texts (the longest of 11 characters), 2 labels"
    assert Classification.shown(LabelledText("a\nb", "x")) == "x: a b"


def test_one_label_alone_is_refused():
    with pytest.raises(DataError, match="All 1 texts to learn from have the label 'spam'"):
        Classification.begin(Parts(KNOWN[:1], [], []), SMALL)


@pytest.mark.parametrize("characters", [False, True])
def test_a_checkpoint_makes_the_same_classifier(tmp_path, characters):
    task, path = begun(replace(SMALL, characters=characters)), tmp_path / "model.safetensors"
    save_checkpoint(path, task.model, extra={"description": task.description()})
    again = Classification.described(read_checkpoint(path))
    again.model.load_state_dict(task.model.state_dict())
    (one, empty), found = task.label(["You won!", ""]), again.label(["You won!", ""])
    assert found == [one, empty]
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    assert one["probability"] == max(one["probabilities"].values())
    assert task.line(one) == one["label"] and list(one["probabilities"]) == ["ham", "spam"]


@pytest.mark.parametrize("damage", [{"labels": ["ham"]}, {"words": [1]}, {"is_characters": 1}])
def test_a_damaged_description_is_refused(tmp_path, damage):
    task, path = begun(), tmp_path / "model.safetensors"
    save_checkpoint(path, task.model, extra={"description": {**task.description(), **damage}})
    with pytest.raises(CheckpointError, match="damaged: its description of the model"):
        Classification.described(read_checkpoint(path))
