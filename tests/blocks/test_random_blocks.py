"""Random programs as blocks give what they give as nodes of each sentence."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing.random_graph import OPERATIONS
from dynbatch.testing.random_program import (
    PARAMETERS,
    VOCABULARY,
    Instruction,
    SentenceProgram,
)
from tests.marks import quick

# The masks of a block differ; cells are blocks' peers, and scans among the functions.
WITHOUT = {"dropout", "call"}
KNOWN = sorted([name for name in OPERATIONS if name not in WITHOUT and "cell" not in name])
LENGTHS = (5, 0, 1, 3, 12, 2, 5, 30)


class BlockBody(SentenceProgram):
    """A program whose leaves are a block's arguments."""

    def __init__(self, graph, leaves, parameters):
        self.graph, self.parameters, self.nodes = graph, parameters, leaves
        self.generator = np.random.default_rng(1)
        self.products, self.pairs, self.functions, self.inline = 0, {}, (), False


def body(instructions):
    """The function of a sentence that runs the instructions."""

    def run(graph, x, y, vector, number, ids, parameters):
        leaves = [F.parameter(graph, parameters["vector"]), x, y, vector, number]
        program = BlockBody(graph, [*leaves, F.lookup(graph, parameters["table"], ids)], parameters)
        for instruction in instructions:
            program.nodes.append(program._apply(OPERATIONS, instruction))
        return tuple(program.nodes[-3:])

    return run


def outcome(function, parameters):
    """Values of all results and gradients of all leaves and parameters, or the error."""
    generator = np.random.default_rng(2)
    arrays = []
    for parameter in parameters.values():
        parameter.zero_grad()
    with db.Graph(dtype="float64", seed=1) as graph:
        leaves, results = [], []
        for length in LENGTHS:
            own = [
                F.input(graph, generator.standard_normal(shape)).keep()
                for shape in ((length, 2), (length, 3), (2,), ())
            ]
            ids = generator.integers(0, VOCABULARY, length)
            leaves += own
            results += function(graph, *own, ids, parameters)
        values = [result.keep() for result in results]
        loss = F.sum([F.sum(F.sigmoid(F.reshape(x, (x.rows * x.width,)))) for x in results])
        graph.backward(loss)
        arrays += [x.value for x in values] + [x.gradient for x in leaves]
    gradients = [p.grad for p in parameters.values()]
    return arrays + [g.dense() if hasattr(g, "dense") else g for g in gradients]


def compare(seed):
    """Whether the block was one program for most sentences."""
    rng = np.random.default_rng(seed)
    instructions = [
        Instruction(
            KNOWN[rng.integers(len(KNOWN))], *rng.integers(0, 40, 2).tolist(), float(rng.normal())
        )
        for _ in range(rng.integers(1, 9))
    ]
    parameters = {
        name: db.Parameter(rng.standard_normal(shape), name) for name, shape in PARAMETERS.items()
    }
    function = body(instructions)
    try:
        expected = outcome(function, parameters)
    except db.errors.DynbatchError as error:
        with pytest.raises(type(error)):
            outcome(db.block(function), parameters)
        return
    found = outcome(db.block(function), parameters)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10, err_msg=str(instructions))


@pytest.mark.parametrize("block", quick(range(1), range(100)))
def test_a_random_program_gives_the_same_as_a_block(block):
    for seed in range(20 * block, 20 * block + 20):
        compare(seed)


def test_a_weight_that_only_an_argmax_reads_has_no_gradient_in_a_block_either():
    compare(292)
