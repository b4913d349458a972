import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, GraphError
from tests.pictures.svg import require_clear_text, texts_of

WEIGHTS = [db.Parameter(np.full((4, 4), 0.1, "float32")) for _ in range(3)]


@db.cell
def leaf(x, p):
    return F.tanh(F.linear(x, p[0]))


@db.cell
def pair(left, right, p):
    return F.tanh(F.linear(left, p[1]) + F.linear(right, p[2]))


@db.cell
def state(x):
    return x, x + x


def tree(words, first, end):
    if end - first == 1:
        return leaf(words[first], WEIGHTS)
    middle = (first + end) // 2
    return pair(tree(words, first, middle), tree(words, middle, end), WEIGHTS)


def trees(graph, lengths):
    roots = [tree(F.input(graph, np.ones((n, 4))), 0, n) for n in lengths]
    graph.values(roots)


def test_every_node_is_a_box_with_its_batch():
    with db.Graph() as graph:
        trees(graph, (3, 4))
        picture = db.pictures.sentence(graph, 1)
    texts = texts_of(picture)
    assert texts.count("leaf") == 4 and texts.count("pair") == 3
    assert texts.count("4 · batch 1.1") == 4  # the leaves of both sentences
    assert texts.count("4 · batch 1.2") == 2 and texts.count("4 · batch 1.3") == 1
    require_clear_text(picture)


def test_boxes_are_as_wide_as_their_longest_line():
    with db.Graph() as graph:
        wide = F.concat(
            [
                F.input(
                    graph,
                    np.ones((120, 2000)),
                )
                for _ in range(2)
            ]
        )
        _ = F.sum(wide).value
        trees(graph, (7,))
        pictures = [db.pictures.sentence(graph, number) for number in (0, 1)]
    assert "120×4000 · batch 1" in texts_of(pictures[0])
    for picture in pictures:
        assert not any("…" in text for text in texts_of(picture))


def test_the_batches_are_those_of_explain():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 4)))
        F.sum(F.exp(F.tanh(x)))
        graph.forward()
        rows = [line.split() for line in graph.explain().splitlines() if line[:4].strip().isdigit()]
        table = {row[1]: row[0] for row in rows}
        texts = texts_of(db.pictures.sentence(graph, 0))
    for kind in ("Input", "Tanh", "Exp", "Sum"):
        assert texts[texts.index(kind) + 1].endswith(f"batch {table[kind]}")


def test_the_middle_of_a_long_sentence_is_left_out_and_counted():
    with db.Graph() as graph:
        x = F.input(graph, np.ones(4))
        for _ in range(100):
            x = F.tanh(x)
        _ = x.value
        picture = db.pictures.sentence(graph, 0)
    texts = texts_of(picture)
    assert "… 89 more" in texts and texts.count("Tanh") == 11
    assert picture.description.startswith("Sentence 0 has 101 nodes in 101 layers.")
    require_clear_text(picture)


@pytest.mark.parametrize("words", [2, 9, 64])
def test_every_node_of_a_wide_tree_is_drawn_or_counted(words):
    with db.Graph() as graph:
        trees(graph, (words,))
        picture = db.pictures.sentence(graph, 0)
    left_out = sum(int(n) for n in re.findall(r">… (\d+) more<", picture.svg))
    boxes = sum(text.split()[0] in ("leaf", "pair", "Row", "Input") for text in texts_of(picture))
    assert left_out + boxes == 1 + words + words + words - 1
    assert (left_out > 0) == (words > 8)
    require_clear_text(picture)


def test_of_a_stack_only_the_parts_that_are_read_are_drawn():
    with db.Graph() as graph:
        words = F.input(graph, np.ones((3, 4)))
        h, c = db.stack([state(words[t]) for t in range(3)])
        assert db.pictures.sentence(graph).description.count("StackCalls,") == 2
        F.tanh(h)
        assert db.pictures.sentence(graph).description.count("StackCalls,") == 1
        F.tanh(c)
        assert db.pictures.sentence(graph).description.count("StackCalls,") == 2


def test_a_block_is_one_box_with_the_batches_of_its_operators():
    layer = models.TransformerEncoder(1, 8, 2)
    with db.Graph() as graph:
        F.sum(layer(F.input(graph, np.ones((3, 8)))))
        before = texts_of(db.pictures.sentence(graph, 0))
        graph.forward()
        after = texts_of(picture := db.pictures.sentence(graph, 0))
    assert "A block is one box; graph.explain() has its batches." in " ".join(after)
    require_clear_text(picture)
    assert before[before.index("TransformerEncoder") + 1] == "3×8 · not run"
    assert re.fullmatch(r"3×8 · batch \d+–\d+", after[after.index("TransformerEncoder") + 1])


def test_logits_inside_of_a_loss_are_folded():
    with db.Graph() as graph:
        logits = F.linear(F.input(graph, np.ones((2, 4))), WEIGHTS[0])
        graph.backward(F.cross_entropy(logits, [0, 1]))
        texts = texts_of(db.pictures.sentence(graph, 0))
    assert "2×4 · folded" in texts


def test_rows_and_sources_show_the_words():
    words = "the cat sat".split()
    with db.Graph() as graph:
        trees(graph, (3,))
        of_rows = texts_of(db.pictures.sentence(graph, 0, words))
        picture = db.pictures.sentence(graph, 0, words)
    for k, word in enumerate(words):
        assert f"Row {k}: {word}" in of_rows
    assert "Input: the cat sat, batch 0, reads nothing." in picture.description
    require_clear_text(picture)


def test_sources_of_one_word_each_show_it():
    table = db.Parameter(np.ones((5, 4), "float32"))
    with db.Graph() as graph:
        F.concat([F.lookup(graph, table, [k]) for k in (4, 0)], dim=0)
        told = db.pictures.sentence(graph, 0, ["never", "mind"]).description
    assert "Lookup: never" in told and "Lookup: mind" in told


@pytest.mark.parametrize(
    ("words", "piece"), [("a b c", "words=text.split()"), (["a", "b"], "words has 2")]
)
def test_words_that_are_not_the_sentences_are_refused(words, piece):
    with db.Graph() as graph:
        trees(graph, (3,))
        with pytest.raises(ArgumentError) as error:
            db.pictures.sentence(graph, 0, words)
    assert piece in str(error.value)


def test_a_sentence_that_is_not_there_is_refused():
    with db.Graph() as graph:
        trees(graph, (2,))
        with pytest.raises(ArgumentError, match=r"number is 3\.\n  rule: the graph has 1"):
            db.pictures.sentence(graph, 3)
        with pytest.raises(ArgumentError, match="graph is a list"):
            db.pictures.sentence([], 0)
    with pytest.raises(GraphError, match="the graph is closed"):
        db.pictures.sentence(graph, 0)


def test_a_malicious_name_cannot_leave_its_box():
    name = "</text><script>alert(1)</script>"
    parameter = db.Parameter(np.ones((2, 2), "float32"), name=name)
    with db.Graph() as graph:
        F.linear(F.input(graph, [1.0, 2.0]), parameter)
        picture = db.pictures.sentence(graph, 0)
    assert "<script" not in picture.svg and "&lt;script" in picture.svg
