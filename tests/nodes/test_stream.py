import numpy as np
import pytest
from hypothesis import given

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing import strategies

SENTENCES = [np.full((length, 2), float(length)) for length in (3, 1, 5)]


def masks(sentences, seed=5):
    """The elements that two layers of dropout keep, by sentence length."""
    with db.Graph(seed=seed) as graph:
        kept = {}
        for x in sentences:
            first = F.dropout(F.input(graph, x), 0.5)
            second = F.dropout(F.tanh(first) + 1.0, 0.5)
            kept[len(x)] = first, second
        return {length: [n.value != 0 for n in nodes] for length, nodes in kept.items()}


def test_masks_of_a_sentence_do_not_depend_on_the_others():
    everyone = masks(SENTENCES)
    for subset in (SENTENCES[::-1], SENTENCES[1:], SENTENCES[2:]):
        for length, nodes in masks(subset).items():
            for mask, expected in zip(nodes, everyone[length], strict=True):
                assert np.array_equal(mask, expected)


def test_seeds_give_other_masks():
    assert not np.array_equal(masks(SENTENCES, 1)[5][0], masks(SENTENCES, 2)[5][0])


def test_two_dropouts_of_one_value_draw_their_own_masks():
    with db.Graph(seed=0) as graph:
        x = F.input(graph, np.ones((20, 5)))
        assert not np.array_equal(F.dropout(x, 0.5).value, F.dropout(x, 0.5).value)


@given(strategies.ragged(2, most_sentences=4))
def test_sentences_are_counted_by_what_they_read(batch):
    parameter = db.Parameter(np.ones(2, np.float32))
    with db.Graph() as graph:
        for number, x in enumerate(batch):
            node = F.tanh(F.input(graph, x)) * F.parameter(graph, parameter)
            assert graph.sentence(node) == number


def test_losses_that_meet_leave_every_node_its_sentence():
    with db.Graph() as graph:
        losses, total = [], F.constant(graph, 0)
        for x in SENTENCES:
            loss = F.sum(F.tanh(F.input(graph, x)))
            losses.append(loss * 2.0)
            total = total + losses[-1]
        last = F.mean(losses)
        assert [graph.sentence(loss) for loss in losses] == [0, 1, 2]
        assert [graph.sentence(node) for node in (total, last, last + total)] == [None] * 3
        words = F.lookup(graph, db.Parameter(np.ones((4, 2), np.float32)), [1, 2])
        assert graph.sentence(words) == 3
        assert graph.sentence(F.exp(words)) == 3


@pytest.mark.parametrize("drop", [F.dropout, db.block(lambda x, p: F.dropout(x, p))])
def test_a_key_keeps_the_mask_of_an_example_among_equal_ones(drop):
    def masks(keys):
        found = {}
        with db.Graph(seed=3) as graph:
            for key in keys:
                with graph.example(key):
                    found[key] = drop(F.input(graph, np.ones(64)), 0.5).value.tolist()
        return found

    together = masks([4, "a", 9])
    assert len({str(mask) for mask in together.values()}) == 3
    for keys in (["a"], [9, 4], ["a", 9, 4]):
        assert all([mask == together[key] for key, mask in masks(keys).items()])


def test_a_key_is_an_integer_or_a_text():
    with db.Graph() as graph, pytest.raises(db.errors.ArgumentError, match=r"key is 1\.5"):
        graph.example(1.5).__enter__()
