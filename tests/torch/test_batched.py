"""Parts of PyTorch models that dynbatch runs, beside the same models in PyTorch alone."""

import copy
import gc
import weakref

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import (
    ArgumentError,
    BackendError,
    DtypeError,
    GraphError,
    NumericError,
    ShapeError,
)
from dynbatch.kernels import arrays

torch = pytest.importorskip("torch")
nn = torch.nn

from dynbatch.torch import Batched, Packed  # noqa: E402

WORDS, WIDTH, HIDDEN, CLASSES = 30, 5, 4, 3


def random_tree(rng, num_words):
    """A tree over words: an integer for a word, a pair for its children."""

    def build(start, end):
        if end - start == 1:
            return start
        split = int(rng.integers(start + 1, end))
        return build(start, split), build(split, end)

    return build(0, num_words)


def trees(seed=0, lengths=(1, 2, 7, 4, 11)):
    rng = np.random.default_rng(seed)
    return [(random_tree(rng, n), torch.from_numpy(rng.integers(WORDS, size=n))) for n in lengths]


class TreeLSTM(nn.Module):
    """A binary Tree-LSTM, written node by node."""

    def __init__(self):
        super().__init__()
        self.leaf = nn.Linear(WIDTH, 3 * HIDDEN)
        self.pair = nn.Linear(2 * HIDDEN, 5 * HIDDEN)

    def forward(self, tree, x):
        if isinstance(tree, int):
            i, o, u = self.leaf(x[tree]).chunk(3)
            c = i.sigmoid() * u.tanh()
        else:
            (h_left, c_left), (h_right, c_right) = [self(child, x) for child in tree]
            i, o, left, right, u = self.pair(torch.cat([h_left, h_right])).chunk(5)
            c = i.sigmoid() * u.tanh() + left.sigmoid() * c_left + right.sigmoid() * c_right
        return o.sigmoid() * c.tanh(), c


@db.cell
def leaf(x, p):
    i, o, u = F.chunk(F.linear(x, p.leaf.weight, p.leaf.bias), 3)
    c = F.sigmoid(i) * F.tanh(u)
    return F.sigmoid(o) * F.tanh(c), c


@db.cell
def pair(left, right, p):
    (h_left, c_left), (h_right, c_right) = left, right
    gates = F.linear(F.concat([h_left, h_right]), p.pair.weight, p.pair.bias)
    i, o, f_left, f_right, u = F.chunk(gates, 5)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f_left) * c_left + F.sigmoid(f_right) * c_right
    return F.sigmoid(o) * F.tanh(c), c


def tree_state(graph, p, tree, x):
    if isinstance(tree, int):
        return leaf(x[tree], p)
    return pair(*[tree_state(graph, p, child, x) for child in tree], p)


def tree_root(graph, p, tree, x):
    return tree_state(graph, p, tree, x)[0]


class OursModel(models.Module):
    """A model of dynbatch with these weights."""

    def __init__(self):
        self.leaf = models.Linear(WIDTH, 3 * HIDDEN)
        self.pair = models.Linear(2 * HIDDEN, 5 * HIDDEN)


class Classifier(nn.Module):
    """PyTorch's embedding, a Tree-LSTM, PyTorch's linear layer and loss."""

    def __init__(self, encoder):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.encoder = encoder
        self.classify = nn.Linear(HIDDEN, CLASSES)

    def roots(self, batch):
        return torch.stack([self.encoder(tree, self.embed(ids))[0] for tree, ids in batch])

    def forward(self, batch):
        targets = torch.arange(len(batch)) % CLASSES
        return nn.functional.cross_entropy(self.classify(self.roots(batch)), targets)


class BatchedClassifier(Classifier):
    def roots(self, batch):
        listed, ids = zip(*batch, strict=True)
        return torch.stack(self.encoder(listed, [self.embed(words) for words in ids]))


class PackedClassifier(Classifier):
    def roots(self, batch):
        listed, ids = zip(*batch, strict=True)
        xs = Packed(self.embed(torch.cat(ids)), [len(words) for words in ids])
        return torch.stack(self.encoder(listed, xs))


class NestedClassifier(Classifier):
    def roots(self, batch):
        listed, ids = zip(*batch, strict=True)
        xs = torch.nested.as_nested_tensor(
            [self.embed(words) for words in ids], layout=torch.jagged
        )
        return torch.stack(self.encoder(listed, xs))


def of_torch(dtype):
    return Batched(tree_root, TreeLSTM().to(dtype))


def of_dynbatch(dtype):
    return Batched(tree_root, OursModel().astype(str(dtype).removeprefix("torch.")))


def pair_of_models(make, form, dtype):
    """One classifier node by node and one batched, with equal values."""
    torch.manual_seed(0)
    plain = Classifier(TreeLSTM()).to(dtype)
    mixed = form(make(dtype)).to(dtype)
    state = {
        name.replace("encoder.", "encoder.weights."): value
        for name, value in plain.state_dict().items()
    }
    mixed.load_state_dict(state)
    return plain, mixed


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", [BatchedClassifier, PackedClassifier, NestedClassifier])
@pytest.mark.parametrize("make", [of_torch, of_dynbatch])
def test_a_mixed_model_equals_pytorchs_in_values_gradients_and_updates(make, form, dtype):
    plain, mixed = pair_of_models(make, form, dtype)
    tolerance = {"atol": 1e-10 if dtype == torch.float64 else 1e-6, "rtol": 0.0}
    sides = [(model, torch.optim.Adam(model.parameters())) for model in (plain, mixed)]
    pointers = [p.data_ptr() for p in mixed.parameters()]
    for step in range(3):
        batch = trees(seed=step)
        losses = []
        for model, optimizer in sides:
            optimizer.zero_grad()
            losses.append(model(batch))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], **tolerance)
        for (name, p), q in zip(plain.named_parameters(), mixed.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, **tolerance, msg=name)
            assert p.grad.abs().max() > 0
        for _, optimizer in sides:
            optimizer.step()
    for p, q in zip(plain.parameters(), mixed.parameters(), strict=True):
        torch.testing.assert_close(q, p, **tolerance)
    assert pointers == [p.data_ptr() for p in mixed.parameters()]


def memory(parameter):
    return parameter.value.__array_interface__["data"][0]


def test_parameters_share_their_memory_with_a_model_of_dynbatch():
    model = OursModel()
    module = Batched(tree_root, model)
    tensors = dict(module.weights.named_parameters())
    assert list(tensors) == ["leaf.weight", "leaf.bias", "pair.weight", "pair.bias"]
    assert {n: t.data_ptr() for n, t in tensors.items()} == {
        n: memory(p) for n, p in model.named_parameters()
    }
    module.state_dict()["weights.leaf.bias"][0] = 7.0
    assert model.leaf.bias.value[0] == 7.0


def test_parameters_share_their_memory_with_a_module_of_pytorch():
    theirs = TreeLSTM()
    module = Batched(tree_root, theirs)
    assert module.weights is theirs
    assert memory(module.params.leaf.weight) == theirs.leaf.weight.data_ptr()
    assert memory(module.params.pair.bias) == theirs.pair.bias.data_ptr()


def test_gradients_are_handed_over_and_those_of_dynbatch_stay():
    model = models.Linear(WIDTH, 2)
    module = Batched(lambda graph, p, x: p(x), model)
    with db.Graph() as graph:
        graph.backward(F.sum(model(F.input(graph, np.ones((3, WIDTH))))))
    own, before = model.weight.grad, model.weight.grad.copy()
    torch.cat(module([torch.ones(2, WIDTH)])).sum().backward()
    grad = module.weights.weight.grad
    assert grad.tolist() == [[2.0] * WIDTH] * 2
    assert model.weight.grad is own and np.array_equal(own, before)
    torch.cat(module([torch.ones(1, WIDTH)])).sum().backward()
    assert module.weights.weight.grad.tolist() == [[3.0] * WIDTH] * 2


def test_lists_of_modules_are_lists_and_tied_weights_one_parameter():
    theirs = nn.Module()
    theirs.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    theirs.by_name = nn.ParameterDict({"scale": torch.ones(3)})
    theirs.layers[1].weight = theirs.layers[0].weight

    def twice(graph, p, x):
        for layer in p.layers:
            x = F.tanh(F.linear(x, layer.weight, layer.bias))
        return x * F.parameter(graph, p.by_name["scale"])

    module = Batched(twice, theirs)
    assert module.params.layers[0].weight is module.params.layers[1].weight
    x = torch.randn(2, 3)
    expected = x
    for layer in theirs.layers:
        expected = layer(expected).tanh()
    (output,) = module([x])
    torch.testing.assert_close(output, expected * theirs.by_name["scale"])
    found = torch.autograd.grad(output.square().sum(), module.parameters())
    wanted = torch.autograd.grad(expected.square().sum(), theirs.layers.parameters())
    torch.testing.assert_close(list(found)[:3], list(wanted))


def test_outputs_of_several_shapes_and_gradients_of_some_of_them():
    def function(graph, p, x, y):
        return F.sum(x), x * y, x @ y.T

    module = Batched(function)
    xs = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 0, 1)]
    ys = [torch.randn(n, 2, dtype=torch.float64) for n in (3, 0, 1)]
    sums, products, squares = module(xs, ys)
    assert [tuple(s.shape) for s in (*sums, *squares)] == [(), (), (), (3, 3), (0, 0), (1, 1)]
    (sums[0] + products[0].square().sum() + squares[2].sum()).backward()
    torch.testing.assert_close(xs[0].grad, 1 + 2 * xs[0].detach() * ys[0] ** 2)
    torch.testing.assert_close(xs[2].grad, ys[2])
    assert ys[0].grad is None


def test_gradients_of_inputs_pass_autograds_own_check():
    lstm = models.LSTM(2, 3).astype("float64")
    module = Batched(lambda graph, lstm, x: lstm(x), lstm)

    def outputs(*xs):
        return torch.cat(module(list(xs)))

    xs = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 1)]
    torch.autograd.gradcheck(outputs, xs)


def test_ids_arrive_as_arrays_and_a_table_gets_a_dense_gradient():
    table = models.Embedding(6, 2)
    module = Batched(lambda graph, table, ids: F.sum(table(graph, ids), dim=0), table)
    torch.stack(module([torch.tensor([1, 1, 4]), torch.tensor([0])])).sum().backward()
    assert module.weights.weight.grad[:, 0].tolist() == [1, 2, 0, 0, 1, 0]


def test_without_gradients_nothing_is_kept():
    graphs = []

    def function(graph, p, x):
        graphs.append(weakref.ref(graph))
        assert not graph.grad
        return p(x)

    module = Batched(function, models.Linear(2, 2))
    with torch.no_grad():
        (output,) = module([torch.ones(1, 2)])
    assert not output.requires_grad and output.grad_fn is None
    module.requires_grad_(False)
    assert not module([torch.ones(1, 2)])[0].requires_grad


def test_a_graph_ends_with_backward_or_with_its_outputs():
    graphs = []

    def function(graph, p, x):
        graphs.append(graph)
        return p(x)

    module = Batched(function, models.Linear(2, 2))
    (output,) = module([torch.ones(1, 2)])
    assert "closed" not in repr(graphs[0])
    output.sum().backward()
    assert "closed" in repr(graphs[0])
    (output,) = module([torch.ones(1, 2)])
    assert "closed" not in repr(graphs[1])
    gc.disable()
    try:
        del output
        assert "closed" in repr(graphs[1])
    finally:
        gc.enable()


def test_a_frozen_parameter_follows_pytorchs_switch():
    model = models.Linear(2, 2)
    model.bias.frozen = True
    module = Batched(lambda graph, p, x: p(x), model)
    weight, bias = module.parameters()
    assert (weight.requires_grad, bias.requires_grad) == (True, False)
    module([torch.ones(1, 2)])[0].sum().backward()
    assert weight.grad is not None and bias.grad is None
    bias.requires_grad_(True)
    weight.requires_grad_(False)
    weight.grad = None
    module([torch.ones(1, 2)])[0].sum().backward()
    assert weight.grad is None and bias.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("make", [of_torch, of_dynbatch])
def test_a_parameter_follows_its_tensor_into_other_memory(make):
    module = make(torch.float32)
    batch = [(tree, torch.randn(len(ids), WIDTH)) for tree, ids in trees()]
    listed, xs = zip(*batch, strict=True)
    before = torch.stack(module(listed, xs))
    module.double()
    after = torch.stack(module(listed, [x.double() for x in xs]))
    torch.testing.assert_close(after.float(), before, atol=1e-6, rtol=0.0)
    assert [memory(link.parameter) for link in module._links] == [
        tensor.data_ptr() for tensor in module.parameters()
    ]
    other = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.zero_()
    assert not torch.stack(other(listed, [x.double() for x in xs])).any()
    torch.testing.assert_close(torch.stack(module(listed, [x.double() for x in xs])), after)
    module.load_state_dict(other.state_dict(), assign=True)
    assert not torch.stack(module(listed, [x.double() for x in xs])).any()


def test_dropout_follows_pytorchs_generator_and_mode():
    class Dropped(models.Module):
        def __init__(self):
            self.dropout = models.Dropout(0.5)

    module = Batched(lambda graph, p, x: p.dropout(x), Dropped())
    x = [torch.ones(50)]
    torch.manual_seed(3)
    first = module(x)[0]
    torch.manual_seed(3)
    assert torch.equal(module(x)[0], first)
    assert not torch.equal(module(x)[0], first)
    assert torch.equal(module.eval()(x)[0], x[0])


def test_no_sentences_give_no_outputs():
    assert Batched(tree_root, TreeLSTM())([], []) == []


# Errors -------------------------------------------------------------------------------------------


def linear():
    return Batched(lambda graph, p, x: p(x), models.Linear(2, 2))


@pytest.mark.parametrize("make", [linear, lambda: Batched(lambda graph, p, x: x * x)])
def test_a_second_backward_is_refused_unless_the_graph_is_retained(make):
    x = torch.ones(1, 2, requires_grad=True)
    (output,) = make()([x])
    output.sum().backward(retain_graph=True)
    first = x.grad.clone()
    output.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second"):
        output.sum().backward()


def test_a_graph_that_has_ended_is_not_differentiated(monkeypatch):
    # PyTorch's name for whether a graph is retained is private: a release may lack it.
    monkeypatch.delattr(torch._C._autograd, "_get_current_graph_task_keep_graph")
    (output,) = linear()([torch.ones(1, 2)])
    output.sum().backward(retain_graph=True)
    with pytest.raises(GraphError, match="a second backward through one mini-batch") as error:
        output.sum().backward()
    assert "fix:  (loss_a + loss_b).backward()" in str(error.value)


def test_a_second_derivative_is_refused_by_name():
    x = torch.ones(1, 2, requires_grad=True)
    (output,) = linear()([x])
    (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_parameters_changed_before_backward_are_refused():
    module = linear()
    (output,) = module([torch.ones(1, 2)])
    with torch.no_grad():
        module.weights.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_node_of_another_mini_batch_is_refused():
    kept = []

    def function(graph, p, x):
        kept.append(x)
        return kept[0]

    module = Batched(function)
    x = [torch.ones(1, 2, requires_grad=True)]
    first = module(x)
    with pytest.raises(GraphError, match="belongs to another graph"):
        module(x)
    assert first[0].tolist() == [[1.0, 1.0]]


def test_values_are_rounded_as_in_a_graph_of_the_precision():
    model, xs = (
        models.LSTM(4, 8, rng=0),
        [torch.linspace(-1, 1, 4 * n).reshape(n, 4) for n in (3, 5)],
    )
    found = [
        x.detach().numpy()
        for x in Batched(lambda graph, p, x: p(x), model, precision="bfloat16")(xs)
    ]
    with db.Graph(precision="bfloat16") as graph:
        expected = graph.values([model(F.input(graph, x)) for x in xs])
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, two)
    with pytest.raises(ArgumentError, match="precision is 'float16'"):
        Batched(lambda graph, p, x: p(x), model, precision="float16")(xs)
    with pytest.raises(DtypeError, match="'weight' lies in 16 bits"):
        short = models.Linear(2, 2)
        short.weight.shorten()
        Batched(lambda graph, p, x: p(x), short)


def test_tensors_of_other_types_and_places_are_refused():
    with pytest.raises(DtypeError, match=r"torch.float64 beside torch.float32"):
        linear()([torch.ones(1, 2, dtype=torch.float64)])
    with pytest.raises(DtypeError, match=r"torch\.bfloat16"):
        Batched(lambda graph, p, x: x)([torch.ones(1, 2, dtype=torch.bfloat16)])
    with pytest.raises(BackendError, match="on meta, the first on cpu"):
        linear()([torch.ones(1, 2, device="meta")])
    with pytest.raises(DtypeError, match=r"'leaf.weight' is torch.float16"):
        Batched(tree_root, TreeLSTM().half())
    module = Batched(tree_root, TreeLSTM())
    module.weights.leaf.weight.data = torch.ones(WIDTH, 3 * HIDDEN).T
    with pytest.raises(ShapeError, match="not contiguous"):
        module([0], [torch.ones(1, WIDTH)])


def test_arguments_of_other_forms_are_refused():
    module = linear()
    with pytest.raises(ShapeError, match="argument 0 has 1 sentences, argument 1 has 2"):
        module([torch.ones(1, 2)], [1, 2])
    with pytest.raises(ArgumentError, match=r"argument 0 is a tensor \(3, 2\)"):
        module(torch.ones(3, 2))
    with pytest.raises(ArgumentError, match="argument 0 is a str"):
        module("a sentence")
    with pytest.raises(ArgumentError, match="argument 0 is 3"):
        module(3)
    with pytest.raises(ShapeError, match="2 lengths, 4 together, and 3 rows"):
        module(Packed(torch.ones(3, 2), [1, 3]))
    with pytest.raises(ArgumentError, match="function is None"):
        Batched(None)
    with pytest.raises(ArgumentError, match="parameters is a list"):
        Batched(tree_root, [])


def test_outputs_of_other_forms_are_refused():
    x = [torch.ones(1, 2), torch.ones(2, 2)]
    with pytest.raises(DtypeError, match="sentence 0 the function returned a ndarray"):
        Batched(lambda graph, p, x: x.value)(x)
    with pytest.raises(DtypeError, match="sentence 1 the function returned 2 nodes"):
        Batched(lambda graph, p, x: (x,) * x.rows)(x)


def test_a_value_that_was_replaced_is_refused():
    model = models.Linear(2, 2)
    module = Batched(lambda graph, p, x: p(x), model)
    model.weight.value = np.zeros((2, 2), np.float32)
    with pytest.raises(GraphError, match=r"the value of Parameter.'weight'.* was replaced"):
        module([torch.ones(1, 2)])


def test_a_gradient_that_is_not_finite_is_refused_and_touches_nothing():
    module = linear()
    (output,) = module([torch.ones(1, 2)])
    with pytest.raises(NumericError, match="is nan"):
        (output * torch.nan).sum().backward()
    assert [p.grad for p in module.parameters()] == [None, None]
    assert module.params.weight.grad is None


@pytest.mark.parametrize("is_differentiated", [True, False])
def test_nothing_is_copied_where_a_mini_batch_ends(is_differentiated, monkeypatch):
    copied = []
    snapshots = arrays.snapshots
    monkeypatch.setattr(arrays, "snapshots", lambda xs: copied.append(len(xs)) or snapshots(xs))
    layer = Batched(lambda graph, p, x: F.tanh(F.linear(x, p.weight, p.bias)), nn.Linear(3, 2))
    xs = [torch.ones(rows, 3, requires_grad=True) for rows in (4, 2)]
    outputs = layer(xs)
    before = sum(copied)
    if is_differentiated:
        sum([y.sum() for y in outputs]).backward()
        assert all([x.grad is not None for x in xs])
    values = [y.detach().clone() for y in outputs]
    del outputs
    gc.collect()
    assert sum(copied) == before, "kept nodes were copied, which nobody can read"
    assert [tuple(y.shape) for y in values] == [(4, 2), (2, 2)]
