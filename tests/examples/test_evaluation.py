"""Error rates of a model, and the two measurements of a mini-batch's memory."""

import numpy as np
import pytest

from examples.seq2seq.corpus import Example
from examples.seq2seq.data import Pair
from examples.seq2seq.evaluation import evaluate, measure_memory
from examples.seq2seq.translator import Translator
from examples.seq2seq.vocabulary import Vocabulary


@pytest.fixture
def translator():
    sizes = {"embed": 8, "hidden": 16}
    return Translator(sizes, Vocabulary("abc"), Vocabulary("xy"), "words", "words", 5)


def pair(source, target):
    return Pair(np.full(source, 3), np.full(target, 4))


def test_targets_are_scored_against_their_references(translator):
    translator.model.output.bias.value[translator.model.end] = 1e4  # it says nothing at all
    examples = [Example(("a", "b"), (("x",), ())), Example(("c",), (("x", "y"),))]
    rates, found = evaluate(translator, examples)
    assert found == [(), ()]
    assert (rates.token, rates.sequence) == (1.0, 0.5)


def test_equal_lengths_take_the_same_memory_padded(translator):
    memory = measure_memory(translator.model, [pair(7, 5) for _ in range(6)])
    assert memory.padded == memory.unpadded
    assert memory.tokens_ratio == 1.0


def test_uneven_lengths_take_more_memory_padded(translator):
    batch = [pair(30, 20), *[pair(2, 3) for _ in range(9)], pair(0, 0)]
    memory = measure_memory(translator.model, batch)
    tokens = [p.num_tokens for p in batch]
    assert memory.tokens_ratio == pytest.approx(11 * 50 / sum(tokens))
    # Activations follow the tokens; weights that a scan packs are the same for both.
    assert 2 < memory.padded / memory.unpadded <= memory.tokens_ratio
    assert "with every sentence extended to the longest" in str(memory)


def test_measuring_leaves_no_gradients(translator):
    measure_memory(translator.model, [pair(3, 2), pair(1, 4)])
    assert all(parameter.grad is None for parameter in translator.model.parameters())
