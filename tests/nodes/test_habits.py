"""Habits from PyTorch and NumPy, tried on a node: they work, or the error says what to write."""

import copy
import pickle
import re

import numpy as np
import pytest

import dynbatch as db
from dynbatch import errors, models
from dynbatch import nodes as F
from dynbatch.nodes.node import Node
from dynbatch.nodes.syntax.absences import Absences, Absent
from dynbatch.nodes.syntax.methods import Methods
from dynbatch.nodes.syntax.other_names import OF_DYNBATCH, OF_MODELS, OF_OPTIM, OTHER_NAMES

MATRIX = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], np.float32)


@pytest.fixture
def graph():
    with db.Graph() as graph:
        yield graph


@pytest.fixture
def x(graph):
    return F.input(graph, MATRIX)


@pytest.fixture
def v(graph):
    return F.input(graph, MATRIX[0])


@pytest.fixture
def s(graph):
    return F.input(graph, 2.5)


# What works ---------------------------------------------------------------------------------------

SAME_AS_NUMPY = [
    lambda x: x.sum(),
    lambda x: x.mean(),
    lambda x: x.max(),
    lambda x: x.min(),
    lambda x: x.T,
    lambda x: x[0].T,
    lambda x: x.transpose(),
    lambda x: x.transpose(1, 0),
    lambda x: x.reshape(3, 2),
    lambda x: x.reshape((3, -1)),
    lambda x: x.flatten(),
    lambda x: x.clip(-1, 2),
    lambda x: abs(x),
    lambda x: +x,
    lambda x: x > 0,
    lambda x: 3 >= x,
    lambda x: x < x * 2,
    lambda x: x <= np.float64(3),
    lambda x: np.float32(3) > x,
    lambda x: 2**x,
    lambda x: -x,
    lambda x: x @ x.T,
    lambda x: x[np.array([False, True])],
    lambda x: x[[True, False]],
    lambda x: x[..., 1:],
    lambda x: x[...],
    lambda x: x[0][None],
    lambda x: x[0][..., None],
    lambda x: x[0][:, None],
    lambda x: x[1, None],
    lambda x: x[-1, ::-1] if isinstance(x, np.ndarray) else F.reverse(x.T).T[-1],
    lambda x: x[-1],
    lambda x: x[::2],
    lambda x: x[::-1],
    lambda x: x[np.int64(1), -1],
    lambda x: x[np.array(1)],
]


@pytest.mark.parametrize("build", SAME_AS_NUMPY)
def test_methods_and_indexing_are_numpys(x, build):
    np.testing.assert_allclose(build(x).value, build(MATRIX), rtol=1e-6)


METHODS = ["abs", "exp", "negative", "relu", "sigmoid", "softmax", "tanh", "log_softmax", "sqrt"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function_of_its_name(x, name):
    x = abs(x)
    assert getattr(x, name)().value.tolist() == getattr(F, name)(x).value.tolist()
    assert getattr(db.Node, name) is getattr(F, name)  # help(db.Node.tanh) is help(F.tanh)


def test_pytorchs_names_of_methods():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    tensor = torch.tensor(MATRIX)
    builds = [
        lambda x: x.view(-1),
        lambda x: x.view(3, 2),
        lambda x: x.t(),
        lambda x: x.mT,
        lambda x: x.neg(),
        lambda x: x.mul(x).add(x).sub(2).div(3),
        lambda x: x.mm(x.t()),
        lambda x: x.clamp(min=0),
        lambda x: x.clamp(max=2).pow(2),
        lambda x: x[0].unsqueeze(0).squeeze(0),
        lambda x: x[0].expand(2, -1),
        lambda x: x.log_softmax(dim=-1).softmax(0),
        lambda x: x.sum(dim=0).logsumexp(0),
        lambda x: x.clone().contiguous(),
        lambda x: x.gt(0) * x + x.le(0) * x * 2 + x.eq(3) * x - x.ne(3) * x,
        lambda x: x.ge(1) * x - x.lt(2) * x,
        lambda x: x.where(x > 0, x * 2).sign(),
        lambda x: x.split(1, dim=0)[1],
        lambda x: x.split([1, 2], -1)[1],
        lambda x: x.chunk(2, dim=1)[0],
        lambda x: x[0].split(2)[1],
        lambda x: x[0].chunk(2)[0],
    ]
    with db.Graph() as graph:
        x = F.input(graph, MATRIX)
        for build in builds:
            np.testing.assert_allclose(build(x).value, build(tensor).numpy(), rtol=1e-5)
        assert (x.size(), x.size(-1), x.dim(), x.numel()) == ((2, 3), 3, 2, 6)
        assert x.nelement() == 6 and x.copy() is x
        assert x.tolist() == tensor.tolist() and x.numpy().tolist() == tensor.tolist()
        assert x.dtype == np.float32
        assert torch.tensor(x).tolist() == torch.from_dlpack(x).tolist() == tensor.tolist()


def test_a_value_of_one_element_is_a_number(s, graph):
    assert (s.item(), float(s), int(s), round(s), f"{s:.2f}") == (2.5, 2.5, 2, 2, "2.50")
    assert float(F.input(graph, [[3.0]])) == 3
    assert f"{s}" == repr(s)


def test_backward_of_a_node_is_the_graphs():
    weight = db.Parameter(MATRIX.copy())
    for call in (lambda graph, loss: graph.backward(loss), lambda graph, loss: loss.backward()):
        with db.Graph() as graph:
            call(graph, F.sum(F.tanh(F.linear(F.input(graph, [1.0, 2.0, 3.0]), weight))))
        assert weight.grad is not None
        last, weight.grad = weight.grad, None
    assert last.any()
    weight.grad = None
    with db.Graph() as graph:
        F.linear(F.input(graph, [1.0, 2.0, 3.0]), weight).backward(np.array([0.0, 2.0]))
    assert weight.grad.tolist() == [[0, 0, 0], [2, 4, 6]]
    with db.Graph() as graph, pytest.raises(errors.MemoryLimitError):
        F.sum(F.tanh(F.input(graph, np.ones((9, 9))))).backward(memory_limit=8)


def test_operators_in_place_bind_the_name_anew(x):
    before = x
    x += 1
    x *= 2
    x -= x
    x /= 2
    x @= x.T
    assert x is not before and x.value.tolist() == [[0, 0], [0, 0]]
    assert before.value.tolist() == MATRIX.tolist()


def test_numpys_numbers_beside_a_node(v):
    assert (np.float64(2) * v).value.tolist() == (2 * MATRIX[0]).tolist()
    assert (np.float32(1) - v).value.tolist() == (1 - MATRIX[0]).tolist()
    assert (np.int64(6) / v).value.tolist() == (np.float32(6) / MATRIX[0]).tolist()
    assert (v + np.array(1)).value.tolist() == (MATRIX[0] + 1).tolist()


def test_a_node_equals_itself_only_so_that_lists_sets_and_dicts_find_it(x, v):
    assert x == x and not (x == v) and x != v
    assert x in [v, x] and {x: 1, v: 2}[x] == 1 and len({x, v, x}) == 2
    assert x != "text" and not (x == None)  # noqa: E711


# What is an error with its fix --------------------------------------------------------------------

REFUSED = [
    (lambda x, v, s: x == 0, errors.DtypeError, "F.equal(x, y)"),
    (lambda x, v, s: x != 0, errors.DtypeError, "F.equal(x, y)"),
    (lambda x, v, s: x == MATRIX, errors.DtypeError, "F.equal(x, y)"),
    (lambda x, v, s: MATRIX == x, errors.DtypeError, "F.equal"),
    (lambda x, v, s: np.float64(2) == x, errors.DtypeError, "F.equal"),
    (lambda x, v, s: x == [1, 2], errors.DtypeError, "F.equal"),
    (lambda x, v, s: db.Parameter(MATRIX) == x, errors.DtypeError, "F.equal"),
    (lambda x, v, s: 1 if x > 0 else 0, errors.DtypeError, "decide on node.value"),
    (lambda x, v, s: x > MATRIX, errors.DtypeError, "F.input(graph, array)"),
    (lambda x, v, s: x.masked_fill(x > 0, 1), errors.MissingAttributeError, "F.where"),
    (lambda x, v, s: x.bfloat16(), errors.MissingAttributeError, 'db.Graph(precision="bfloat16")'),
    (lambda x, v, s: float(x), errors.ShapeError, "F.sum(x) and F.mean(x)"),
    (lambda x, v, s: x.item(), errors.ShapeError, "x.value is the array"),
    (lambda x, v, s: bool(x), errors.DtypeError, "decide on node.value"),
    (lambda x, v, s: list(x), errors.DtypeError, "[x[t] for t in range(len(x))]"),
    (lambda x, v, s: list(x), errors.DtypeError, "F.split(x, sizes, dim=0)"),
    (lambda x, v, s: x.split(1), errors.ShapeError, "x.split(1, dim=0) for tokens"),
    (lambda x, v, s: x.split([1, 2]), errors.ShapeError, "x.split([1, 2], dim=-1) for features"),
    (lambda x, v, s: x.chunk(2), errors.ShapeError, "x.chunk(2, dim=0) for tokens"),
    (lambda x, v, s: x.split(1, axis=0), errors.DtypeError, "the name is dim"),
    (lambda x, v, s: x.cumsum(axis=0), errors.DtypeError, "the name is dim"),
    (lambda x, v, s: F.cumsum(x, axis=0), errors.DtypeError, "the name is dim"),
    (lambda x, v, s: F.cumsum(x, 0, keepdim=True), errors.DtypeError, "leave it out"),
    (lambda x, v, s: x.cumsum(), errors.DtypeError, "dim=0 for tokens, dim=-1 for features"),
    (lambda x, v, s: 3 in x, errors.DtypeError, "not iterable"),
    (lambda x, v, s: len(s), errors.DtypeError, "F.stack"),
    (lambda x, v, s: np.tanh(x), errors.DtypeError, "F.tanh in the network, node.value outside"),
    (lambda x, v, s: np.cbrt(x), errors.DtypeError, "fix:  node.value outside"),
    (lambda x, v, s: np.arcsin(x), errors.DtypeError, "F.asin in the network"),
    (lambda x, v, s: np.sum(x), errors.DtypeError, "F.sum in the network"),
    (lambda x, v, s: np.concatenate([x, x]), errors.DtypeError, "F.concat in the network"),
    (lambda x, v, s: np.add.reduce(x), errors.DtypeError, "np.add of Input"),
    (lambda x, v, s: np.asarray(x), errors.DtypeError, "node.value is the array"),
    (lambda x, v, s: np.mean([s, s]), errors.DtypeError, "node.value is the array"),
    (lambda x, v, s: np.ones(3) * v, errors.DtypeError, "F.input(graph, array)"),
    (lambda x, v, s: np.ones((2, 2)) @ x, errors.DtypeError, "F.input(graph, array)"),
    (lambda x, v, s: x @ 2.0, errors.DtypeError, "x * number"),
    (lambda x, v, s: 2.0 @ x, errors.DtypeError, "x * number"),
    (lambda x, v, s: x @ db.Parameter(MATRIX), errors.DtypeError, "F.linear multiplies"),
    (lambda x, v, s: db.Parameter(MATRIX) @ x, errors.DtypeError, "F.linear multiplies"),
    (lambda x, v, s: x % 2, errors.DtypeError, "has no operator %"),
    (lambda x, v, s: 2 // x, errors.DtypeError, "has no operator //"),
    (lambda x, v, s: x & x, errors.DtypeError, "a * b"),
    (lambda x, v, s: x | x, errors.DtypeError, "a + b - a * b"),
    (lambda x, v, s: ~x, errors.DtypeError, "1 - x"),
    (lambda x, v, s: x.__setitem__(0, 1), errors.DtypeError, "its elements cannot be set"),
    (lambda x, v, s: setattr(x, "value", 1), errors.MissingAttributeError, "F.input(graph, array)"),
    (lambda x, v, s: setattr(x, "shape", 1), errors.MissingAttributeError, "F.reshape(x, shape)"),
    (lambda x, v, s: setattr(x, "gradient", 1), errors.MissingAttributeError, "cannot be set"),
    (lambda x, v, s: setattr(x, "grad", None), errors.MissingAttributeError, "x.keep()"),
    (lambda x, v, s: x.grad, errors.MissingAttributeError, "then x.gradient"),
    (lambda x, v, s: x.data, errors.MissingAttributeError, "node.value"),
    (lambda x, v, s: x.cuda(), errors.MissingAttributeError, 'db.Graph(device="cuda")'),
    (lambda x, v, s: x.to("cuda"), errors.MissingAttributeError, 'db.Graph(device="cuda")'),
    (lambda x, v, s: x.cpu(), errors.MissingAttributeError, "node.value is on the host"),
    (lambda x, v, s: x.double(), errors.MissingAttributeError, 'db.Graph(dtype="float64")'),
    (lambda x, v, s: x.requires_grad, errors.MissingAttributeError, "frozen"),
    (lambda x, v, s: x.max(0).values, errors.MissingAttributeError, "F.topk"),
    (lambda x, v, s: x.astype("float64"), errors.MissingAttributeError, 'dtype="float64"'),
    (lambda x, v, s: x.device, errors.MissingAttributeError, "graph.device"),
    (lambda x, v, s: x.argmin(0), errors.MissingAttributeError, "F.argmax(-x, dim)"),
    (lambda x, v, s: x.argsort(), errors.MissingAttributeError, "F.topk"),
    (lambda x, v, s: x.add_(1), errors.MissingAttributeError, "x = x + y"),
    (lambda x, v, s: x.permute(1, 1), errors.ShapeError, "each of its dimensions once"),
    (lambda x, v, s: x.transpose(0, 2), errors.ShapeError, "two of its dimensions"),
    (lambda x, v, s: pickle.dumps(x), errors.DtypeError, "to store it, x.value"),
    (lambda x, v, s: copy.deepcopy({"x": x}), errors.DtypeError, "use x itself"),
    (lambda x, v, s: copy.copy(x), errors.DtypeError, "use x itself"),
    (lambda x, v, s: s.backward(retain_graph=True), errors.DtypeError, "one backward after"),
    (lambda x, v, s: x[1.0], errors.DtypeError, "x[3], x[2:5]"),
    (lambda x, v, s: x[True], errors.DtypeError, "x[3], x[2:5]"),
    (lambda x, v, s: x[0.5:1], errors.DtypeError, "x[3], x[2:5]"),
    (lambda x, v, s: x[::0], errors.DtypeError, "step is not 0"),
    (lambda x, v, s: x[x], errors.DtypeError, "x[key.value.astype(int)]"),
    (lambda x, v, s: x["a"], errors.DtypeError, "x[3], x[2:5]"),
    (lambda x, v, s: x[0, 1, 2], errors.DtypeError, "x[3], x[2:5]"),
    (lambda x, v, s: x[[True] * 3], errors.ShapeError, "a mask of 3"),
    (lambda x, v, s: v[[True] * 2], errors.ShapeError, "each element of a vector"),
    (lambda x, v, s: v[[0, 3]], errors.VocabularyError, "row 3 at position 1"),
    (lambda x, v, s: s[0], errors.ShapeError, "has no parts"),
    (lambda x, v, s: F.constant(x.graph, "2"), errors.DtypeError, "numbers"),
    (lambda x, v, s: F.constant(x.graph, None), errors.DtypeError, "numbers"),
    (lambda x, v, s: F.constant(x.graph, 2.0, (-1,)), errors.ShapeError, "max(2 * T - 1, 0)"),
    (lambda x, v, s: F.expand(s, (-1, 4)), errors.ShapeError, "max(2 * T - 1, 0)"),
    (lambda x, v, s: F.reshape(x[:0], (0, -1)), errors.ShapeError, "give every size"),
    (lambda x, v, s: F.constant(x.graph, [2.0], (3,)), errors.ShapeError, "leave shape out"),
    (lambda x, v, s: F.constant(x.graph, s), errors.DtypeError, "a node is not an array"),
]


@pytest.mark.parametrize(("use", "error", "fix"), REFUSED)
def test_what_means_nothing_here_says_what_to_write(x, v, s, use, error, fix):
    nodes = len(x.graph)
    with pytest.raises(error) as caught:
        use(x, v, s)
    message = str(caught.value)
    assert fix in message and "fix:" in message and "test_habits.py" in message
    assert len(x.graph) <= nodes + 1


BY_DIM = [
    *[
        getattr(F, n)
        for n in "sum mean max min logsumexp argmax softmax log_softmax var std".split()
    ],
    *[
        F.squeeze,
        F.unsqueeze,
        lambda x, dim=0, **named: F.cumsum(x, dim, **named),
        lambda x, **named: F.split(x, 1, **named),
    ],
    *[lambda x, **named: F.chunk(x, 1, **named), lambda x, **named: F.slice(x, 0, 1, **named)],
    *[lambda x, **named: F.concat([x], **named), lambda x, **named: F.stack([x], **named)],
]


@pytest.mark.parametrize("function", BY_DIM)
def test_axis_and_keepdim_are_told_of_dim(v, function):
    for name, fix in (("axis", "the name is dim"), ("keepdim", "F.unsqueeze makes")):
        with pytest.raises(errors.DtypeError, match=f"no argument {name}=0") as caught:
            function(v, **{name: 0})
        assert fix in str(caught.value)
    with pytest.raises(errors.DtypeError, match=r"no argument dims=0(.|\n)*names its arguments"):
        function(v, dims=0)


@pytest.mark.parametrize("function", BY_DIM)
@pytest.mark.parametrize("dim", ["0", 1.0, [0.0], (0, "1"), (1, None)])
def test_a_dim_is_an_integer(x, dim, function):
    with pytest.raises(errors.DtypeError, match="is not an integer"):
        function(x, dim=dim)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, F.sparsemax, F.cumsum])
def test_what_goes_along_a_dim_takes_one(x, function):
    with pytest.raises(errors.DtypeError, match=r"dim=\(0, 1\) is not an integer"):
        function(x, dim=(0, 1))


# A parameter --------------------------------------------------------------------------------------

OF_PARAMETERS = [
    *[lambda p: p * 2, lambda p: 1 - p, lambda p: p * p, lambda p: -p, lambda p: p**2],
    *[lambda p: p > 0, lambda p: 0 >= p, lambda p: p @ p, lambda p: abs(p), lambda p: p + MATRIX],
    *[lambda p: MATRIX * p, lambda p: np.float32(2) * p, lambda p: np.ones((0, 3)) + p],
    *[lambda p: p == 0, lambda p: p != 0, lambda p: p == MATRIX, lambda p: MATRIX == p],
    *[lambda p: p[0], lambda p: list(p), lambda p: 3 in p, lambda p: p.__setitem__(0, 1)],
    *[lambda p: np.tanh(p), lambda p: np.asarray(p), lambda p: np.sum(p), lambda p: float(p)],
    *[lambda p: p.item(), lambda p: np.concatenate([p, p]), lambda p: p // 2, lambda p: 2 % p],
    *[lambda p: p.sum(), lambda p: p.T, lambda p: p.data, lambda p: p.tanh(), lambda p: p.view(3)],
]


@pytest.mark.parametrize("use", OF_PARAMETERS)
def test_a_parameter_without_a_graph_says_what_makes_it_a_node(use):
    with pytest.raises(errors.DynbatchError) as caught:
        use(db.Parameter(MATRIX.copy(), "weight"))
    message = str(caught.value)
    assert "fix:" in message and "p.value is the array" in message and "'weight'" in message
    assert "test_habits.py" in message


@pytest.mark.parametrize("name", ["requires_grad", "data"])
def test_what_a_parameter_has_not_cannot_be_set(name):
    with pytest.raises(errors.MissingAttributeError, match="fix:"):
        setattr(db.Parameter(MATRIX.copy()), name, False)


def test_what_means_one_thing_of_a_parameter_works():
    p, one = db.Parameter(MATRIX.copy()), db.Parameter(np.array([2.5], np.float32))
    assert (len(p), p.ndim, p.shape, len(one), one.ndim) == (2, 2, (2, 3), 1, 1)
    assert (float(one), one.item(), int(one)) == (2.5, 2.5, 2)
    assert bool(p) and bool(db.Parameter(np.ones((0, 3), np.float32)))
    assert not hasattr(p, "T") and "sum" not in dir(p) and "value" in dir(p)


def test_parameters_are_equal_by_identity_and_found_in_lists_sets_and_dicts():
    p, q = db.Parameter(MATRIX.copy()), db.Parameter(MATRIX.copy())
    assert p == p and p != q and p != "text" and not (p == None)  # noqa: E711
    assert q in [p, q] and {p: 1, q: 2}[q] == 2 and len({p, q, p}) == 2
    other = copy.deepcopy([p, p])
    assert other[0] is other[1] and other[0] != p
    assert pickle.loads(pickle.dumps(p)).value.tolist() == MATRIX.tolist()


def test_a_parameter_beside_a_node_is_a_node(x):
    p = db.Parameter(MATRIX + 10)
    found = [p * x, x * p, p - x, p / x, p > x, p + x, np.multiply(p, x), np.multiply(x, p), x**p]
    q = p.value
    with np.errstate(invalid="ignore"):
        wanted = [q * MATRIX, MATRIX * q, q - MATRIX, q / MATRIX, q > MATRIX, q + MATRIX]
        wanted += [q * MATRIX, MATRIX * q, MATRIX**q]
    for node, array in zip(found, wanted, strict=True):
        np.testing.assert_allclose(node.value, array, rtol=1e-5)


def test_ids_targets_and_masks_may_be_tensors_as_a_data_set_of_pytorch_has_them(graph, x):
    torch = pytest.importorskip("torch")
    ids, mask = np.array([1, 0]), np.array([[True, False], [True, True]])
    for make in (
        lambda ids, mask: F.lookup(graph, db.Parameter(MATRIX), ids),
        lambda ids, mask: F.gather_rows(x, ids),
        lambda ids, mask: F.cross_entropy(x, ids),
        lambda ids, mask: F.attention(x, x, x, mask=mask),
    ):
        of_tensors = make(torch.from_numpy(ids), torch.from_numpy(mask))
        assert np.array_equal(of_tensors.value, make(ids, mask).value)


# Functions of other names -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_pytorchs_name_of_a_function_says_what_f_calls_it(name):
    with pytest.raises(AttributeError) as caught:
        getattr(F, name)
    assert type(caught.value) is errors.MissingAttributeError
    message = str(caught.value)
    assert f"F has no '{name}'" in message and "test_habits.py" in message
    own = re.findall(r"\bF\.(\w+)", OTHER_NAMES[name])
    assert all(one in F.__all__ for one in own) and name not in F.__all__


@pytest.mark.parametrize(
    ("module", "label", "name"),
    [(models, "models", name) for name in OF_MODELS]
    + [(db.optim, "optim", name) for name in OF_OPTIM]
    + [(db, "dynbatch", name) for name in OF_DYNBATCH],
)
def test_pytorchs_name_of_a_class_or_setting_says_what_to_write(module, label, name):
    with pytest.raises(errors.MissingAttributeError, match=f"{label} has no '{name}'") as caught:
        getattr(module, name)
    known = {"models": models, "optim": db.optim, "F": F, "db": db, "train": db.train}
    for owner, own in re.findall(r"\b(models|optim|F|db|train)\.(\w+)", str(caught.value)):
        assert own in known[owner].__all__
    assert not hasattr(module, name) and not hasattr(module, "no_such_name")


def test_other_names_of_f_are_absent_as_of_every_module():
    with pytest.raises(AttributeError, match=r"'dynbatch.nodes' has no attribute 'no_such_name'"):
        F.no_such_name  # noqa: B018
    assert not hasattr(F, "cat") and "cat" not in dir(F)
    with pytest.raises(ImportError):
        from dynbatch.nodes import cat  # noqa: F401


def test_dropout_is_a_method_too(graph):
    x = F.input(graph, np.ones(50, np.float32))
    assert set(x.dropout(0.5).value.tolist()) == {0.0, 2.0}


# What a cell returns ------------------------------------------------------------------------------


PAIRS = [lambda pair: pair + 1, lambda pair: 2 * pair, lambda pair: -pair, lambda pair: pair == 0]


@pytest.mark.parametrize("use", PAIRS)
def test_arithmetic_with_a_tuple_of_a_cells_results_says_how_to_take_them(graph, use):
    @db.cell
    def step(x):
        return x, (x, x * 2)

    _, pair = step(F.input(graph, [1.0, 2.0]))
    with pytest.raises(errors.DtypeError, match=r"fix:  it is a tuple of nodes: h, c = part"):
        use(pair)
    assert (pair[1] + 1).value.tolist() == [3, 5]


# The names themselves -----------------------------------------------------------------------------


def test_absent_names_are_absent_for_hasattr_and_dir(x):
    names = [name for name, entry in vars(Absences).items() if isinstance(entry, Absent)]
    assert "grad" in names and "cuda" in names
    assert not [name for name in names if hasattr(x, name) or name in dir(x)]
    assert "tanh" in dir(x) and not hasattr(x, "no_such_name")
    assert not [n for n in ("__array_interface__", "__cuda_array_interface__") if hasattr(x, n)]


def test_an_attribute_of_a_users_node_type_goes_before_a_habit():
    class Mean(db.Node):  # without __slots__, so that its attributes lie in a dict
        def infer_shape(self, x):
            return x

    class Slotted(db.Node):
        __slots__ = ("data", "sum")

        def infer_shape(self, x):
            return x

    with db.Graph() as graph:
        x = F.input(graph, [1.0])
        for kind in (Mean, Slotted):
            node = kind(x, data=3, sum=4)
            assert (node.data, node.sum) == (3, 4)
            node.data = 5
            assert node.data == 5


def test_no_node_type_of_the_library_hides_a_habit():
    habits = {n for kind in (Methods, Absences) for n in vars(kind) if not n.startswith("_")}
    hidden = {
        (kind.__name__, name)
        for kind in subclasses(Node)
        if kind.__module__.startswith("dynbatch.")
        for name in habits & set(vars(kind))
    }
    assert not hidden


def subclasses(kind):
    return {kind}.union(*[subclasses(below) for below in kind.__subclasses__()])


def test_attributes_are_looked_up_the_fast_way():
    """With a `__getattr__` CPython 3.11 looks up every attribute of every node the slow way."""
    assert not [n for n in ("__getattr__", "__getattribute__", "__setattr__") if own(n)]


def own(name):
    return any(name in vars(kind) for kind in Node.__mro__ if kind is not object)
