"""A gallery of the mistakes people make, and what they are told.

Every message says what happened and to which node, gives the shapes, the rule and the fix, and
points to the line of the user that made the node.
"""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import dynbatch as db
from dynbatch import errors
from dynbatch import nodes as F

WORDS = db.Parameter(np.zeros((10, 4), np.float32), "embedding.weight")
WEIGHT = db.Parameter(np.zeros((3, 4), np.float32), "project.weight")
BIAS = db.Parameter(np.zeros(3, np.float32), "project.bias")
DOUBLE = db.Parameter(np.zeros((3, 4)), "double.weight")
DOUBLE.settle()


def tokens(graph, length=5, width=4):
    return F.input(graph, np.zeros((length, width)))


class Mistake(NamedTuple):
    """A mistake, its exception, and pieces of its message in order."""

    provoke: Any
    error: type[Exception]
    pieces: tuple[str, ...]


def wrong_features(graph):
    F.linear(tokens(graph), BIAS_OF_THREE)


BIAS_OF_THREE = db.Parameter(np.zeros((3, 7), np.float32), "narrow.weight")


def inner_dimensions(graph):
    tokens(graph, 9, 2)
    query, keys = tokens(graph, 7, 256), tokens(graph, 512, 4)
    F.matmul(query, keys)


def another_length(graph):
    first = F.tanh(tokens(graph, 5))
    second = F.tanh(tokens(graph, 3))
    _ = first + second


def another_graph(graph):
    with db.Graph() as other:
        _ = tokens(graph) + tokens(other)


def after_the_block(graph):
    node = tokens(graph)
    graph.close()
    F.tanh(node)


def value_after_the_block(graph):
    node = tokens(graph)
    graph.close()
    _ = node.value


def freed_value(graph):
    hidden = F.tanh(F.linear(tokens(graph), WEIGHT))
    graph.backward(F.sum(F.exp(hidden)))
    _ = hidden.value


def nan_loss(graph):
    graph.backward(F.sum(F.log(F.input(graph, [-1.0]).keep())))


def exploding_loss(graph):
    graph.backward(F.sum(F.exp(F.input(graph, [1000.0]).keep())))


def cell_without_state(graph):
    @db.cell
    def forgetful(x, h, params):
        return F.tanh(x + h)

    db.scan(forgetful, tokens(graph), init=4)


def undecorated_cell(graph):
    db.scan(lambda x, h, p: (h, h), tokens(graph), init=4)


class UserNode(db.Node):
    """A node type of the user's own, whose shape rule is no line to point at."""

    __slots__ = ()

    def infer_shape(self, x):
        self.require(False, "nothing fits", "none", "none")


@db.cell
def reads_parameters(x, h, p):
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return h, h


def cell_of_another_width(graph):
    @db.cell
    def elman(x, h, p):
        h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
        return h, h

    db.scan(elman, tokens(graph), 3, SimpleNamespace(W=WEIGHT, U=WEIGHT))


def no_memory(graph):
    with db.Graph(pool=db.memory.Pool(limit_bytes=4096)) as small:
        _ = tokens(small, 1000).value


GALLERY = [
    Mistake(wrong_features, errors.ShapeError, (
        "LinearMap #new, sentence 0: x (5, 4) and weight 'narrow.weight' (3, 7) differ in I (4",
        "a  Input #0         float32 (5, 4)", "rule: x (…, I), weight (O, I)",
        "fix:  give 'narrow.weight' 4 columns, or project x to 7")),
    Mistake(inner_dimensions, errors.ShapeError, (
        "MatMul #new, sentence", "a (7, 256) and b (512, 4) differ in I (256 != 512)",
        "a  Input #1         float32 (7, 256)", "b  Input #2         float32 (512, 4)",
        "rule: a (…, I) or (…, T, I), b (I, O) or (…, I, O) -> (…, O)", "fix:  transpose")),
    Mistake(lambda graph: F.input(graph, np.ones((2, 3, 4))) @ F.input(graph, np.ones((3, 4, 5))),
            errors.ShapeError, (
        "MatMul #new, sentence 0: a (2, 3, 4) and b (3, 4, 5) differ.", "rule: a (…, I) or",
        "fix:  give both the same dimensions before the last two")),
    Mistake(lambda graph: F.input(graph, np.ones((2, 3, 4))) @ F.input(graph, np.ones((2, 5, 6))),
            errors.ShapeError, ("a (2, 3, 4) and b (2, 5, 6) differ in I (4 != 5)", "fix:")),
    Mistake(lambda graph: F.input(graph, np.ones((2, 3, 4))) @ F.input(graph, np.ones((5, 6))),
            errors.ShapeError, ("a (2, 3, 4) and b (5, 6) differ in I (4 != 5)", "fix:")),
    Mistake(another_length, errors.ShapeError, (
        "shape (5, 4) cannot be repeated to (3, 4)", "Tanh #1", "rule:",
        "check which operand belongs to another sentence", "beside Tanh #3 (3, 4)")),
    Mistake(lambda graph: F.lookup(graph, WORDS, [4, 17, 2]), errors.VocabularyError, (
        "lookup in 'embedding.weight': id 17 at position 1 of 3 is outside the table of 10 rows",
        "rule: 0 <= id < 10", "fix:  map unknown words to one id")),
    Mistake(lambda graph: db.scan(reads_parameters, tokens(graph), 3), errors.GraphError, (
        "cell 'reads_parameters' reads its parameters, and none were given",
        "fix:  db.scan(cell, xs, init, params)", "test_errors.py")),
    Mistake(cell_of_another_width, errors.ShapeError, (
        "differ in I (3 != 4)", "a  state 0", "rule:", "fix:")),
    Mistake(lambda graph: tokens(graph) or None, errors.DtypeError, (
        "Input #0 (5, 4) has no truth value", "fix:  decide on node.value")),
    Mistake(lambda graph: F.lookup(graph, WORDS, [-1]), errors.VocabularyError, ("id -1",)),
    Mistake(lambda graph: F.lookup(graph, WORDS, [0.5]), errors.ShapeError, (
        "one-dimensional sequence of integers", "fix:  pass one sentence's ids")),
    Mistake(lambda graph: F.lookup(graph, WORDS, [[1], [2]]), errors.ShapeError, (
        "2 dimensions", "fix:")),
    Mistake(lambda graph: F.lookup(graph, WORDS, ["the", "cat"]), errors.ShapeError, (
        "lookup: a one-dimensional sequence of integers expected, got text",
        "fix:  give each word's id")),
    Mistake(lambda graph: F.cross_entropy(tokens(graph)[0], True), errors.ShapeError, (
        "cross_entropy: a one-dimensional sequence of integers expected, got truth values",
        "fix:  give ids: int(value) is 0 or 1")),
    Mistake(lambda graph: F.lookup(graph, WORDS, graph), errors.ShapeError, (
        "expected, got Graph", "fix:")),
    Mistake(lambda graph: F.lookup(graph, WORDS, [[1, 2], [3]]), errors.ShapeError, ("fix:",)),
    Mistake(lambda graph: F.lookup(graph, BIAS, [0]), errors.ShapeError, (
        "the table 'project.bias' has shape (3,)", "rule: a table is (V, D)", "fix:")),
    Mistake(lambda graph: F.linear(tokens(graph), BIAS), errors.ShapeError, (
        "weight 'project.bias' has shape (3,)", "weight (O, I)", "fix:  give the parameter two")),
    Mistake(lambda graph: F.linear(tokens(graph), WEIGHT, WEIGHT), errors.ShapeError, (
        "bias 'project.weight' has shape (3, 4)", "[bias (O,)]", "fix:")),
    Mistake(lambda graph: F.linear(tokens(graph), np.zeros((3, 4))), errors.DtypeError, (
        "linear: a parameter expected, got ndarray", "fix:  make it one, once, with db.Parameter")),
    Mistake(lambda graph: tokens(graph) @ WEIGHT, errors.DtypeError, (
        "matmul: a node expected, got Parameter", "fix:  F.linear", "F.parameter")),
    Mistake(lambda graph: UserNode(tokens(graph)), errors.ShapeError, (
        "UserNode #new, sentence 0: nothing fits.", "rule:", "fix:")),
    Mistake(lambda graph: F.linear(tokens(graph), DOUBLE), errors.DtypeError, (
        "parameter 'double.weight' is float64, the graph float32",
        "fix:  db.Graph(dtype='float64'), or model.astype('float32')")),
    Mistake(lambda graph: F.tanh(np.zeros(3)), errors.DtypeError, (
        "Tanh: a node expected, got ndarray", "fix:  turn arrays into nodes with F.input")),
    Mistake(lambda graph: F.linear(np.zeros(4), WEIGHT), errors.DtypeError, (
        "linear: a node expected, got ndarray",)),
    Mistake(lambda graph: tokens(graph) + np.ones(4), errors.DtypeError, (
        "a node or a number expected, got ndarray", "fix:")),
    Mistake(lambda graph: F.input(graph, "words"), errors.DtypeError, (
        "numbers expected, got <U5 ()", "fix:")),
    Mistake(lambda graph: F.input(graph, [[1.0, 2.0], [3.0]]), errors.ShapeError, (
        "the rows of the array have different lengths", "rule:", "fix:")),
    Mistake(lambda graph: F.input(graph, []), errors.ShapeError, (
        "the value would have shape (0,)", "rule:", "an empty sentence of D features is np.zeros")),
    Mistake(lambda graph: F.concat([tokens(graph, 5), tokens(graph, 3)]), errors.ShapeError, (
        "Concat #new", "inputs of different lengths", "rule:", "fix:")),
    Mistake(lambda graph: F.concat([tokens(graph, 5, 4), tokens(graph, 5, 3)], dim=0),
            errors.ShapeError, ("inputs of different widths [3, 4]", "rule:", "fix:")),
    Mistake(lambda graph: F.cross_entropy(tokens(graph), [0, 1]), errors.ShapeError, (
        "2 targets", "shape (5, 4)", "rule: one target for each row", "fix:")),
    Mistake(lambda graph: F.cross_entropy(tokens(graph), [0, 1, 9, 1, 1]), errors.VocabularyError, (
        "target 9 at position 2 of 5 is outside the 4 classes", "rule:", "fix:")),
    Mistake(lambda graph: list(tokens(graph)), errors.DtypeError, (
        "Input #0 (5, 4) is not iterable", "fix:  F.split")),
    Mistake(lambda graph: graph.backward(tokens(graph)), errors.ShapeError, (
        "Input #0: the loss has shape (5, 4)", "rule: backward starts from a scalar",
        "fix:  F.mean([...])")),
    Mistake(lambda graph: graph.backward({"loss": tokens(graph)}), errors.DtypeError, (
        "backward: a node expected, got dict",)),
    Mistake(cell_without_state, errors.ShapeError, (
        "cell 'forgetful' must return (output, next state)", "fix:  `return h, h`")),
]  # fmt: skip

# Raised at the line that reads or runs, not where a node is made.
WHILE_RUNNING = [
    Mistake(lambda graph: F.mean([]), errors.EmptyBatchError, (
        "mean: the list is empty", "rule:", "fix:  skip empty mini-batches")),
    Mistake(lambda graph: F.concat([]), errors.EmptyBatchError, ("concat",)),
    Mistake(another_graph, errors.GraphError, (
        "inputs belong to different graphs", "rule:", "fix:")),
    Mistake(after_the_block, errors.GraphError, (
        "Tanh: the graph is closed", "fix:  build, run and read inside the block")),
    Mistake(value_after_the_block, errors.GraphError, (
        "value of Input #0: the graph is closed", "fix:")),
    Mistake(freed_value, errors.FreedError, (
        "Tanh #2: the value was freed", "fix:  call node.keep")),
    Mistake(nan_loss, errors.NumericError, (
        "Sum #2: the loss is nan", "fix:", "guard=True) names the node")),
    Mistake(exploding_loss, errors.NumericError, ("the loss is inf", "fix:")),
    Mistake(lambda graph: db.Graph(device="tpu"), errors.BackendError, (
        "device 'tpu' is unknown", "fix:")),
    Mistake(lambda graph: db.Graph(dtype="float16"), errors.DtypeError, ("float16",)),
    Mistake(no_memory, errors.OutOfMemory, ("pool:", "limit 4,096", "fix:")),
    Mistake(undecorated_cell, errors.DtypeError, ("is not a cell", "@db.cell")),
    Mistake(lambda graph: db.Parameter(np.zeros(3, np.int64)), errors.DtypeError, (
        "float32 or float64 expected, got int64",)),
    Mistake(lambda graph: db.Parameter(np.zeros((2, 2, 0))), errors.ShapeError, (
        "its shape is (2, 2, 0)", "rule: every row has at least one number", "fix:")),
]  # fmt: skip


def message_of(mistake: Mistake) -> str:
    with db.Graph() as graph, pytest.raises(mistake.error) as caught:
        mistake.provoke(graph)
    assert type(caught.value) is mistake.error
    return str(caught.value)


def ids(mistake: Mistake) -> str:
    return mistake.pieces[0][:50]


@pytest.mark.parametrize("mistake", GALLERY + WHILE_RUNNING, ids=ids)
def test_the_message_says_what_where_and_how_to_fix_it(mistake):
    message, position = message_of(mistake), 0
    for piece in mistake.pieces:
        assert piece in message[position:], message
        position = message.index(piece, position)


@pytest.mark.parametrize("mistake", GALLERY, ids=ids)
def test_the_message_points_to_the_line_that_made_the_node(mistake):
    message = message_of(mistake)
    lines, first = inspect.getsourcelines(mistake.provoke)
    made_at = [line for line in message.splitlines() if line.startswith("  made at ")]
    file, rest = made_at[0].removeprefix("  made at ").split(".py:")
    assert file + ".py" == __file__
    assert first <= int(rest.split(" ")[0]) < first + len(lines)


def test_every_exception_is_a_dynbatch_error_and_a_built_in_one():
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and kind is not errors.DynbatchError
    ]
    assert len(kinds) == 21
    built_in = (
        ValueError,
        TypeError,
        IndexError,
        RuntimeError,
        ArithmeticError,
        OSError,
        MemoryError,
        ExceptionGroup,
        UserWarning,
        AttributeError,
    )
    for kind in kinds:
        assert issubclass(kind, errors.DynbatchError) and issubclass(kind, built_in)


def test_the_sentence_is_counted_among_those_of_the_mini_batch():
    with db.Graph() as graph:
        for length in (2, 3, 4):
            F.sum(F.tanh(tokens(graph, length)))
        with pytest.raises(errors.ShapeError, match=r"LinearMap #new, sentence 3: "):
            F.linear(F.tanh(tokens(graph, 1)), BIAS_OF_THREE)


def test_the_users_line_is_added_to_messages_in_one_place():
    package = Path(db.__file__).parent
    adding = [path.name for path in package.rglob("*.py") if "caller()}" in path.read_text()]
    assert adding == ["errors.py"]
