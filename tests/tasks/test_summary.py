import pytest

from dynbatch.tasks.classification import Classification
from dynbatch.tasks.fine_tuning import FineTuning
from dynbatch.tasks.language_model import DocumentWriter
from dynbatch.tasks.summary import LONG, long_example, memory_saved, speed
from dynbatch.tasks.tagging import Tagging
from dynbatch.text import LabelledText, TaggedSentence


@pytest.mark.parametrize("task", [Classification, Tagging, FineTuning, DocumentWriter])
def test_an_example_whose_mini_batch_takes_minutes_is_told_of(task):
    def of(length):
        word = "x" * (length - 4)
        if task is DocumentWriter:
            return word
        is_tagged = task is Tagging
        return TaggedSentence((word,), ("tag",)) if is_tagged else LabelledText(word, "ab")

    assert long_example(task, [of(9), of(LONG - 1)]) == ""
    told = long_example(task, [of(9), of(LONG), of(5)])
    if task.is_bounded:
        assert told == ""
    else:
        assert told.startswith("an example has 100,000 characters: ") and len(told) < 300


def test_the_memory_of_a_training_is_told_beside_that_of_padded_batches():
    records = [
        {"peak_bytes": 2_000_000, "planned_bytes": 2_000_000, "padded_bytes": 6_000_000},
        {"peak_bytes": 7_000_000},
        {"peak_bytes": 4_000_000, "planned_bytes": 4_000_000, "padded_bytes": 10_000_000},
        {"step": 3, "metric": 0.5},
    ]
    assert memory_saved(records) == (
        "3.0 MB on average (4.0 at most), padded 8.0 (10.0): 62% saved; "
        "2 of 2 looked at took what was planned before they ran"
    )
    assert memory_saved(records[1:2]) == ""


def test_speed_is_that_of_all_sentences_together():
    records = [{"sentences": 10, "sentences_per_second": 10.0}, {"step": 1, "metric": 1.0}]
    records += [{"sentences": 30, "sentences_per_second": 10.0}]
    assert speed(records) == "10 sentences per second"
    assert speed([]) == ""
