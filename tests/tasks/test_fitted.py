"""Settings that suit the size of the data: little of it is seen often, in small mini-batches."""

import pytest

from dynbatch.tasks.language_model import DocumentWriter, LanguageModelSettings
from dynbatch.tasks.translation.settings import TranslationSettings
from dynbatch.tasks.translation.translator import Translator
from dynbatch.text import ParallelText


@pytest.mark.parametrize(
    ("num_bytes", "epochs", "max_tokens", "warmup"),
    [
        (1_000, 40, 128, 62),
        (50_000, 40, 1024, 200),
        (1_000_000, 5, 1024, 200),
        (9**8, 1, 1024, 200),
    ],
)
def test_a_text_of_any_size_is_read_for_minutes(num_bytes, epochs, max_tokens, warmup):
    found = DocumentWriter.fitted(["x" * (num_bytes - 1)], LanguageModelSettings())
    assert found == {"epochs": epochs, "max_tokens": max_tokens, "warmup": warmup}


@pytest.mark.parametrize(
    ("num_pairs", "epochs", "batch_size"), [(10, 40, 8), (2_000, 40, 40), (50_000, 15, 64)]
)
def test_pairs_of_any_number_are_read_for_minutes(num_pairs, epochs, batch_size):
    texts = [ParallelText("the fox is a dog x", ("der Fuchs",))] * num_pairs  # 6 and 2 words
    found = Translator.fitted(texts, TranslationSettings())
    assert (found["epochs"], found["batch_size"]) == (epochs, batch_size)
    assert 1 <= found["warmup"] <= 200
    as_transformer = Translator.fitted(texts, TranslationSettings(model="transformer"))
    assert as_transformer == {"epochs": epochs}
