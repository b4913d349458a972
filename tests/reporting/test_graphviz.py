"""Graphviz text of a graph."""

import re
import shutil
import subprocess

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import GraphError

NODE = re.compile(r'  n(\d+) \[label="((?:[^"\\]|\\.)*)"\];')
EDGE = re.compile(r"  n(\d+) -> n(\d+);")


def parsed(text):
    """Labels by index, and edges; every line must be one of those."""
    head, _, _, *body, end, last = text.split("\n")
    assert (head, end, last) == ("digraph sentence {", "}", "")
    labels, edges = {}, []
    for line in body:
        if node := NODE.fullmatch(line):
            labels[int(node[1])] = node[2].split("\\n")
        else:
            edges.append(tuple(int(i) for i in EDGE.fullmatch(line).groups()))
    return labels, edges


def two_sentences(graph, name="proj.weight"):
    weight = db.Parameter(np.ones((3, 2), "float32"), name=name)
    shared = F.parameter(graph, db.Parameter(np.ones(3, "float32"), name="shift"))
    losses = []
    for length in (1, 4):
        x = F.linear(F.input(graph, np.ones((length, 2))), weight)
        losses.append(F.mean(F.sum(x, dim=0) * shared))
    return F.mean(losses)


def test_one_sentence_with_what_it_reads_and_its_batches():
    with db.Graph() as graph:
        two_sentences(graph)
        before = graph.to_dot(sentence=1)
        graph.forward()
        labels, edges = parsed(graph.to_dot(sentence=1))
        assert 'label="sentence 1"' in before
        assert {label[-1] for label in parsed(before)[0].values()} == {"not run"}
    texts = [" ".join(label[:-1]) for label in labels.values()]
    assert [text.split(" ")[0] for text in texts] == [
        "ParameterNode", "Input", "LinearMap", "Sum", "Multiply", "Mean"]  # fmt: skip
    assert "(4, 3) proj.weight (3, 2)" in texts[2]
    assert all(re.fullmatch(r"batch \d+", label[-1]) for label in labels.values())
    assert len(edges) == 5 and all(a in labels and b in labels and a < b for a, b in edges)


def test_all_nodes_when_no_sentence_is_named():
    with db.Graph() as graph:
        two_sentences(graph)
        labels, edges = parsed(graph.to_dot())
        assert len(labels) == len(graph) == 12
        assert len(edges) == sum(len(node.inputs) for node in graph._nodes)


def test_the_batch_is_that_of_the_table():
    with db.Graph() as graph:
        two_sentences(graph)
        graph.forward()
        labels, _ = parsed(graph.to_dot(sentence=0))
        (batch,) = [label[-1] for label in labels.values() if label[0].startswith("LinearMap")]
        (line,) = [line for line in graph.explain().splitlines() if "LinearMap " in line]
        assert batch == f"batch {line.split()[0]}"


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "\\", "two\nlines", '"]; evil [label="'])
def test_names_cannot_leave_their_label(name):
    with db.Graph() as graph:
        two_sentences(graph, name)
        labels, _ = parsed(graph.to_dot(sentence=0))
    (linear,) = [label for label in labels.values() if label[0].startswith("LinearMap")]
    assert len(linear) == 3 or "\\" in name


def test_there_is_no_such_sentence():
    with db.Graph() as graph:
        two_sentences(graph)
        for sentence in (2, -1):
            with pytest.raises(ValueError, match="the graph has 2, counted from 0"):
                graph.to_dot(sentence=sentence)


def test_a_closed_graph_has_no_nodes_to_draw():
    with db.Graph() as graph:
        two_sentences(graph)
    with pytest.raises(GraphError, match="to_dot: the graph is closed"):
        graph.to_dot(sentence=0)


@pytest.mark.skipif(not shutil.which("dot"), reason="no Graphviz: the text is parsed by the test")
def test_graphviz_takes_it():
    with db.Graph() as graph:
        two_sentences(graph, '"]; evil [label="\\')
        text = graph.to_dot(sentence=0)
    drawn = subprocess.run(
        ["dot", "-Tplain"], input=text, capture_output=True, text=True, check=True
    )
    assert "evil [label" in drawn.stdout and not drawn.stderr


@db.cell
def chained(x, state):
    h, total = state
    return F.tanh(x + h), (x + h, total + F.sum(x))


def test_calls_are_drawn_with_the_part_of_their_batch():
    with db.Graph() as graph:
        for length in (3, 1):
            xs, state = F.input(graph, np.ones((length, 2))), (2, F.constant(graph, 0.0, ()))
            for t in range(length):
                y, state = chained(xs[t], state)
            F.sum(y)
        graph.forward()
        labels, edges = parsed(graph.to_dot(sentence=0))
        assert len(parsed(graph.to_dot())[0]) == len(graph.nodes)
    texts = {" / ".join(label): index for index, label in labels.items()}
    last = [text for text in texts if text.startswith("chained #") and "(2,), (2,), ()" in text][-1]
    assert last.endswith("part 2 of 3")
    call = texts[last]
    row = next(a for a, b in edges if b == call and labels[a][0].startswith("Row"))
    assert labels[row][-1] == "read in place"
    assert any(labels[b][0].startswith(f"chained #{call}[0] (2,)") for a, b in edges if a == call)
