import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ShapeError, VocabularyError
from dynbatch.nodes.operation import signature_type
from dynbatch.nodes.positions.absolute import PositionRows, Sinusoids
from dynbatch.testing import check_batching, check_gradient
from tests.messages import raised
from tests.torch_parity import assert_equals_torch, import_torch

LENGTHS = [0, 1, 7, 70]


def expected(positions, width, layout, base=10000.0):
    """Number by number, as the paper writes it."""
    rows = []
    for p in positions:
        angles = [p / base ** (2 * i / width) for i in range(width)]
        sines, cosines = [np.sin(angles), np.cos(angles)]
        if layout == "halves":
            rows.append([*sines[: (width + 1) // 2], *cosines[: width // 2]])
        else:
            rows.append([(cosines if j % 2 else sines)[j // 2] for j in range(width)])
    return np.array(rows).reshape(len(positions), width)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_sinusoids_are_the_papers(width, layout, dtype):
    with db.Graph(dtype=dtype) as graph:
        nodes = [
            F.sinusoidal(F.input(graph, np.full((n, width), np.nan)), layout=layout, offset=n)
            for n in LENGTHS
        ]
        for n, node in zip(LENGTHS, nodes, strict=True):
            wanted = expected(range(n, 2 * n), width, layout)
            tolerance = 1e-7 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(node.value, wanted, rtol=0, atol=tolerance)


def test_sinusoids_of_given_positions_and_of_one_token():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((3, 4)))
        given = F.sinusoidal(x, 50.0, positions=[5, 0, 2]).value
        np.testing.assert_allclose(given, expected([5, 0, 2], 4, "interleaved", 50.0))
        assert np.array_equal(F.sinusoidal(x[0], 50.0, offset=5).value, given[0])


def test_sinusoids_pass_no_gradient():
    def build(graph, x, offset):
        return x * 3.0 + F.sinusoidal(x, offset=offset)

    generator = np.random.default_rng(0)
    check_batching(build, [(generator.standard_normal((n, 6)), n) for n in LENGTHS])
    check_gradient(lambda graph, x: build(graph, x, 2), shapes=[(3, 6)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_positions_are_rows_of_the_table(dtype):
    torch = import_torch()
    assert_equals_torch(
        lambda x, table: x + F.positions(x, table, offset=2),
        lambda x, table: x + torch.nn.functional.embedding(2 + torch.arange(len(x)), table),
        [(length, 6) for length in LENGTHS],
        parameters=[(72, 6)],
        dtype=dtype,
    )


def test_positions_batch_and_differentiate():
    table = db.Parameter(np.random.default_rng(0).standard_normal((80, 5)), "table")

    def build(graph, x, offset):
        return F.positions(F.tanh(x), table, offset)

    sentences = [(np.ones((n, 3)), n // 7) for n in LENGTHS] + [(np.ones(3), 1)]
    check_batching(build, sentences, parameters=[table])
    for shape in [(0, 3), (1, 3), (4, 3), (3,)]:
        check_gradient(lambda graph, x: build(graph, x, 1), shapes=[shape], parameters=[table])
    table.frozen = True
    check_gradient(lambda graph, x: x + build(graph, x, 1), shapes=[(4, 5)], parameters=[table])


def test_all_lengths_are_one_batch():
    table = db.Parameter(np.ones((80, 4), np.float32))
    with db.Graph() as graph:
        for n in LENGTHS:
            x = F.input(graph, np.ones((n, 4)))
            x + F.positions(x, table) + F.sinusoidal(x, offset=n)
        graph.forward()
        kinds = [signature_type(step.signature) for plan in graph.plans for step in plan.steps]
        assert kinds.count(PositionRows) == kinds.count(Sinusoids) == 1


def test_a_block_refuses_a_sentence_that_is_too_long_for_the_table():
    table = db.Parameter(np.ones((60, 4), np.float32), "places")

    @db.block
    def placed(x):
        return x + F.positions(x, table)

    for length in (0, 3, 60):
        with db.Graph() as graph:
            assert placed(F.input(graph, np.ones((length, 4)))).value.shape == (length, 4)
    with db.Graph() as graph:
        nodes = [placed(F.input(graph, np.ones((length, 4)))) for length in (5, 61, 2)]
        words = "61 tokens", "a table of 60 rows", "rule: "
        raised(VocabularyError, lambda: nodes[-1].value, *words)


def test_a_block_takes_positions_of_each_sentence_and_refuses_wrong_ones():
    @db.block
    def placed(x, positions):
        return F.rotary(x, positions=positions) + F.sinusoidal(x, positions=positions)

    generator = np.random.default_rng(0)
    sentences = [(generator.standard_normal((n, 4)), generator.integers(0, 99, n)) for n in LENGTHS]
    check_batching(lambda graph, x, positions: placed(x, positions), sentences)
    with db.Graph(dtype="float64") as graph:
        for x, positions in sentences:
            node = placed(F.input(graph, x), positions)
            alone = placed.__wrapped__(F.input(graph, x), positions)
            assert np.array_equal(node.value, alone.value)
        x = F.input(graph, np.ones((3, 4)))
        raised(VocabularyError, lambda: placed(x, np.array([0, -1, 2])), "rotary: position -1")
        raised(ShapeError, lambda: placed(x, np.array([0, 1])), "2 positions for 3 tokens")


def test_wrong_arguments_are_refused():
    table = db.Parameter(np.ones((4, 6), np.float32), "places")
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 6)))
        F.positions(x, table, 1)
        raised(
            VocabularyError, lambda: F.positions(x, table, 2),
            "3 tokens from position 2 on, in a table of 4 rows", "rule: offset + tokens <= rows",
        )  # fmt: skip
        raised(ShapeError, lambda: F.positions(F.sum(x), table), "x has shape ()", "the sentence")
        raised(ShapeError, lambda: F.sinusoidal(F.sum(x)), "x has shape ()", "the sentence")
        vector = db.Parameter(np.ones(4, np.float32), "v")
        raised(ShapeError, lambda: F.positions(x, vector), "table 'v' has shape (4,)")
        raised(DtypeError, lambda: F.positions(x, np.ones((4, 6))), "a parameter expected")
        raised(ArgumentError, lambda: F.positions(x, table, -1), "positions: offset is -1")
        raised(ArgumentError, lambda: F.sinusoidal(x, layout="marian"), "layout is 'marian'")
        raised(VocabularyError, lambda: F.sinusoidal(x, positions=[0, -1, 1]), "position -1")
