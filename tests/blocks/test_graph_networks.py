"""Blocks that take ids of a sentence's own rows, or counts of them, are one node a sentence."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F

WIDTH = 4
# Words and edges of each sentence: equal ones, none, more of either.
SIZES = ((3, 5), (4, 4), (1, 1), (2, 0), (6, 13), (0, 0), (1, 7), (12, 3))


def parameter(number):
    return db.Parameter(np.random.default_rng(number).standard_normal((WIDTH, WIDTH)), "weight")


MESSAGE, UPDATE = parameter(0), parameter(1)


def a_round(x, graph):
    """A round of a graph network: each node adds up the messages along its edges."""
    messages = F.relu(F.linear(F.gather_rows(x, graph["sources"]), MESSAGE))
    return F.tanh(F.linear(x, UPDATE) + F.segment_sum(messages, graph["degrees"]))


def mean_round(x, graph):
    messages = F.linear(F.gather_rows(x, graph["sources"]), MESSAGE)
    return x + F.segment_mean(messages, graph["degrees"])


def edge_round(x, graph):
    """Messages of both ends of an edge; normalised over the edges of its target."""
    sources, targets = F.gather_rows(x, graph["sources"]), x[graph["targets"]]
    weights = F.exp(F.sum(F.tanh(sources) * F.tanh(targets), dim=-1))
    totals = F.gather_rows(F.segment_sum(weights, graph["degrees"]), graph["targets"])
    return F.segment_sum(weights / totals * F.linear(sources, MESSAGE), graph["degrees"])


def numpy_round(x, graph):
    """Ids that NumPy makes of those that are given, with a row of the block's own behind x."""
    rows = F.concat([x, F.linear(F.unsqueeze(F.sum(x, dim=0), 0), UPDATE)], dim=0)
    ids = np.concatenate((np.flip(graph["sources"]), graph["targets"] + 1))
    return F.tanh(F.linear(F.gather_rows(rows, ids), MESSAGE))


def chosen(x, graph):
    """A pointer from each edge to a node."""
    edges = F.gather_rows(F.linear(x, MESSAGE), graph["sources"])
    return F.pointer_loss(edges, x, graph["targets"])


def ignoring(x, graph):
    edges = F.gather_rows(F.linear(x, MESSAGE), graph["sources"])
    return F.pointer_loss(edges, x, graph["targets"], ignore_index=1, reduction="sum")


def slope(x, graph):
    """A gradient, which adds rows up by ids."""

    def energy(rows):
        return F.sum(F.tanh(F.linear(F.gather_rows(rows, graph["sources"]), MESSAGE)))

    return F.tanh(db.grad(energy)(x))


FUNCTIONS = (a_round, mean_round, edge_round, numpy_round, chosen, ignoring, slope)


def examples(function, sizes=SIZES, ids=np.int64):
    generator = np.random.default_rng(1)
    for words, edges in sizes:
        targets = np.sort(generator.integers(0, max(words, 1), edges))
        yield (
            generator.standard_normal((words, WIDTH)),
            {
                "sources": generator.integers(0, max(words, 1), edges).astype(ids),
                "targets": targets.astype(ids),
                "degrees": np.bincount(targets, minlength=words).astype(ids),
            },
        )


class Outcome:
    """Values, gradients of inputs and of parameters; how often the function ran."""

    def __init__(self, function, sentences, as_block=True):
        self.runs = 0

        def counted(*arguments):
            self.runs += 1
            return function(*arguments)

        called = db.block(counted) if as_block else counted
        for weight in (MESSAGE, UPDATE):
            weight.zero_grad()
        with db.Graph(dtype="float64") as graph:
            inputs = [F.input(graph, x).keep() for x, _ in sentences]
            before = len(graph)
            results = [
                called(x, arrays).keep() for x, (_, arrays) in zip(inputs, sentences, strict=True)
            ]
            self.nodes, self.programs = len(graph) - before, {node.sig for node in results}
            graph.backward(F.sum([F.sum(F.sin(result)) for result in results]))
            self.arrays = [node.value for node in results] + [x.gradient for x in inputs]
            self.notes = dict(graph.block_notes)
        self.arrays += [weight.grad for weight in (MESSAGE, UPDATE)]

    def agrees_with(self, other):
        return all(
            (a is None and b is None) or np.allclose(a, b, rtol=1e-12, atol=1e-14)
            for a, b in zip(self.arrays, other.arrays, strict=True)
        )


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_block_of_ids_and_counts_is_one_node_a_sentence_whatever_its_words_and_edges(function):
    sentences = list(examples(function))
    block, again = Outcome(function, sentences), Outcome(function, sentences * 3)
    assert block.agrees_with(Outcome(function, sentences, as_block=False))
    assert block.notes == again.notes == {}
    assert block.nodes == len(sentences) and len(block.programs) == 1
    assert block.runs == again.runs


@pytest.mark.parametrize("first", range(len(SIZES)))
def test_it_does_not_matter_which_sentence_is_the_first(first):
    sizes = (SIZES[first], *SIZES)
    sentences = list(examples(a_round, sizes))
    block = Outcome(a_round, sentences)
    assert block.agrees_with(Outcome(a_round, sentences, as_block=False))
    assert block.notes == {}


@pytest.mark.parametrize("ids", [np.int32, np.uint8])
def test_ids_and_counts_of_any_integers_are_taken(ids):
    sentences = list(examples(a_round, ids=ids))
    block = Outcome(a_round, sentences)
    assert block.agrees_with(Outcome(a_round, sentences, as_block=False)) and not block.notes


WRONG = [
    (a_round, "sources", [0, 3, 1], r"row 3 at position 1 of 3 ids"),
    (a_round, "sources", [0, -1, 1], r"row -1 at position 1 of 3 ids"),
    (a_round, "degrees", [1, 1, 2], r"3 segments of 4 rows in all"),
    (a_round, "degrees", [4, -1, 0], r"3 segments of 3 rows in all"),
    (mean_round, "degrees", [0, 0, 0], r"3 segments of 0 rows in all"),
    (edge_round, "targets", [0, 1, 7], r"row 7 at position 2 of 3 ids"),
    (chosen, "targets", [0, 5, 1], r"target 5 at position 1 of 3 is outside the 3 classes"),
    (slope, "sources", [0, 1, 3], r"row 3 at position 2 of 3 ids"),
]


@pytest.mark.parametrize("function, name, wrong, message", WRONG)
def test_an_array_that_does_not_suit_the_sentence_is_refused_at_the_function_s_line(
    function, name, wrong, message
):
    block = db.block(function)
    arrays = {"sources": [0, 2, 1], "targets": [0, 1, 1], "degrees": [1, 2, 0]}
    right = {name: np.array(ids) for name, ids in arrays.items()}
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, WIDTH)))
        for sizes in SIZES[:2]:  # from then on the program is known
            ((rows, known),) = examples(function, [sizes])
            block(F.input(graph, rows), known)
        with pytest.raises(db.errors.DynbatchError, match=message) as caught:
            block(x, right | {name: np.array(wrong)})
        assert "test_graph_networks.py" in str(caught.value)
        result = block(x, right)
        assert np.array_equal(result.value, function(x, right).value)


def test_wrong_ids_in_the_first_sentence_spoil_nothing():
    block = db.block(a_round)
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, WIDTH)))
        wrong = {"sources": np.array([0, 3]), "degrees": np.array([1, 1, 0])}
        with pytest.raises(db.errors.VocabularyError, match="row 3"):
            block(x, wrong)
        before = len(graph)
        block(x, wrong | {"sources": np.array([0, 2])})
        assert len(graph) == before + 1


def test_rows_that_the_block_itself_chooses_by_the_length_are_asked_for_at_each_length():
    @db.block
    def ends(x):
        return F.gather_rows(x, [0, x.rows - 1, 0] if x.rows else [])

    with db.Graph(dtype="float64") as graph:
        for length in (3, 5, 1, 0, 4):
            rows = np.arange(length * WIDTH, dtype=float).reshape(length, WIDTH)
            wanted = rows[[0, -1, 0]] if length else rows
            assert np.array_equal(ends(F.input(graph, rows)).value, wanted)


def test_ids_of_a_constant_list_are_checked_in_every_sentence():
    @db.block
    def firsts(x):
        return F.gather_rows(x, [0, 1, 2])

    with db.Graph(dtype="float64") as graph:
        assert firsts(F.input(graph, np.ones((5, WIDTH)))).shape == (3, WIDTH)
        assert firsts(F.input(graph, np.ones((3, WIDTH)))).shape == (3, WIDTH)
        with pytest.raises(db.errors.VocabularyError, match="row 2 at position 2"):
            firsts(F.input(graph, np.ones((2, WIDTH))))
