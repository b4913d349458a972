"""Whoever keeps or reads a node finds its true value and gradient, whatever was folded."""

from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import FreedError, GraphError, MemoryLimitError
from dynbatch.testing import NanPool
from tests.marks import quick
from tests.messages import raised

VOCABULARY, WIDTH = 5, 3


def projection():
    generator = np.random.default_rng(0)
    return (
        db.Parameter(generator.standard_normal((VOCABULARY, WIDTH)), "projection"),
        db.Parameter(generator.standard_normal(VOCABULARY), "bias"),
    )


def given(lengths=(3, 0, 1, 4)):
    generator = np.random.default_rng(1)
    return [(generator.standard_normal((n, WIDTH)), generator.integers(0, 5, n)) for n in lengths]


def softmax_minus_target(logits, ids):
    """d cross-entropy / d logits, by its formula."""
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[np.arange(len(ids)), ids] -= 1
    return p / max(1, len(ids))


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("policy", ["by_bound", "one_by_one"])
@pytest.mark.parametrize(
    "when", ["before", "after", "loss read", "logits read", "total read", "estimated", "forward"]
)
def test_logits_that_are_kept_have_their_value_and_gradient(when, policy, limited):
    weight, bias = projection()
    with db.Graph(dtype="float64", policy=policy, pool=NanPool()) as graph:
        kept, losses = [], []
        for number, (x, ids) in enumerate(given()):
            logits = F.linear(F.input(graph, x), weight, bias)
            if when == "before":
                logits.keep()
            losses.append(F.cross_entropy(logits, ids))
            if number != 2:  # nobody asks for these
                kept.append((logits, x, ids))
        loss = F.sum([one * one for one in losses])
        if when == "loss read":
            _ = losses[0].value
        elif when == "logits read":
            _ = kept[0][0].value
        elif when == "total read":
            _ = loss.value
        elif when == "estimated":
            graph.estimate(loss)
        elif when == "forward":
            graph.forward()
        for logits, _, _ in kept:
            logits.keep()
        limit = graph.estimate(loss).peak_bytes if limited else None
        graph.backward(loss, memory_limit=limit)
        for logits, x, ids in kept:
            z = x @ weight.value.T + bias.value
            np.testing.assert_allclose(logits.value, z, rtol=1e-12)
            shifted = np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(ids)), ids]
            own = 2 * (shifted.mean() if len(ids) else 0.0)
            expected = own * softmax_minus_target(z, ids)
            np.testing.assert_allclose(logits.gradient, expected, rtol=1e-9, atol=1e-14)
        everyone = [
            2 * (np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(ids)), ids]).mean()
            * softmax_minus_target(z, ids).T @ x
            for x, ids in given() if len(ids)
            for z in [x @ weight.value.T + bias.value]
        ]  # fmt: skip
        np.testing.assert_allclose(weight.grad, sum(everyone), rtol=1e-9, atol=1e-13)


def test_logits_with_another_reader_carry_the_gradients_of_both():
    weight, bias = projection()
    ((x, ids),) = given((3,))
    with db.Graph(dtype="float64") as graph:
        logits = F.linear(F.input(graph, x), weight, bias).keep()
        loss = F.cross_entropy(logits, ids) + F.sum(logits * 2.0)
        graph.backward(loss)
        expected = softmax_minus_target(x @ weight.value.T + bias.value, ids) + 2
        np.testing.assert_allclose(logits.gradient, expected, rtol=1e-12)
        assert "LinearCrossEntropy" not in graph.explain()


def test_one_sentence_that_keeps_its_logits_does_not_store_those_of_others():
    weight, bias = projection()
    with db.Graph(dtype="float64") as graph:
        losses = []
        for number, (x, ids) in enumerate(given()):
            logits = F.linear(F.input(graph, x), weight, bias)
            losses.append(F.cross_entropy(logits, ids))
            if number == 1:
                logits.keep()
        graph.backward(F.mean(losses))
        kinds = [[type(node).__name__ for node in step.nodes] for step in graph._executor.steps]
        assert ["LinearCrossEntropy"] * 3 in kinds and ["CrossEntropy"] in kinds


def test_logits_that_were_not_kept_are_named_when_they_are_read_too_late():
    weight, bias = projection()
    ((x, ids),) = given((3,))
    with db.Graph(dtype="float64") as graph:
        logits = F.linear(F.tanh(F.input(graph, x)), weight, bias)
        graph.backward(F.cross_entropy(logits, ids))
        label = logits.label()
        raised(FreedError, lambda: logits.value, f"{label}: the value was freed", "keep()")
        logits.keep()
        raised(FreedError, lambda: logits.gradient, f"{label}: its gradient was not kept", "keep()")


def test_a_node_kept_only_after_backward_has_no_gradient_rather_than_zeros():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [1.0, 2.0]).keep()
        y = F.tanh(x)
        graph.backward(F.sum(y))
        raised(FreedError, lambda: y.keep().gradient, f"{y.label()}: its gradient was not kept")
        assert x.gradient.all()


def test_the_gradient_of_a_kept_node_is_that_of_the_last_backward():
    with db.Graph(dtype="float64") as graph:
        x, y = F.input(graph, [1.0, 2.0]).keep(), F.input(graph, [3.0]).keep()
        first, second = F.sum(x * 2.0), F.sum(y * 5.0)
        graph.forward()
        graph.backward(first)
        assert x.gradient.tolist() == [2, 2] and y.gradient.tolist() == [0]
        graph.backward(second)
        assert x.gradient.tolist() == [0, 0] and y.gradient.tolist() == [5]


def test_a_kept_node_that_the_loss_does_not_need_has_its_value_after_backward():
    weight, bias = projection()
    (one, (x, ids)) = given((2, 3))
    for limited in (False, True):
        with db.Graph(dtype="float64", pool=NanPool()) as graph:
            other = F.cross_entropy(F.linear(F.input(graph, one[0]), weight, bias), one[1])
            hidden = F.tanh(F.input(graph, x))
            aside = (hidden * 3.0).keep()
            loss = F.mean([other, F.cross_entropy(F.linear(hidden, weight, bias), ids)])
            limit = graph.estimate(loss).peak_bytes - 1 if limited else None
            graph.backward(loss, memory_limit=limit)
            np.testing.assert_allclose(aside.value, 3 * np.tanh(x), rtol=1e-12)
            assert not aside.gradient.any()


def test_a_kept_node_that_passes_no_gradient_on_has_that_of_its_readers():
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, [[1.0, 3.0, 2.0]]).keep()
        best = F.argmax(x).keep()
        graph.backward(F.sum(best * 5.0) + F.sum(x * x))
        assert best.value == 1 and best.gradient == 5
        assert x.gradient.tolist() == [[2, 6, 4]]


@db.cell
def step(x, below):
    return F.tanh(x * 0.5 + below[0]), below[1] + x


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("pair", [False, True])
def test_a_row_kept_after_calls_were_given_it_has_its_value_and_gradient(read, pair):
    ((x, _),) = given((3,))
    with db.Graph(dtype="float64") as graph:
        rows = F.input(graph, x).keep()
        row = rows[1]
        h, c = step(row, (row, rows[0]) if pair else (WIDTH, WIDTH))
        loss = F.sum(h * c)
        if read:
            _ = loss.value
        row.keep()
        graph.backward(loss)
        slope = 1 - np.tanh(x[1] * (1.5 if pair else 0.5)) ** 2
        of_h, of_c = x[1] + x[0] * pair, np.tanh(x[1] * (1.5 if pair else 0.5))
        expected = of_h * slope * (1.5 if pair else 0.5) + of_c
        np.testing.assert_allclose(row.value, x[1], rtol=1e-12)
        np.testing.assert_allclose(row.gradient, expected, rtol=1e-12)
        np.testing.assert_allclose(rows.gradient[1], expected, rtol=1e-12)


def test_a_part_of_a_total_that_is_kept_carries_the_gradient_of_a_call():
    ((x, _),) = given((3,))
    with db.Graph(dtype="float64") as graph:
        rows = F.input(graph, x)
        below = db.total([step(rows[k], (WIDTH, WIDTH)) for k in (0, 1)])
        kept = below[0].keep()
        h, _ = step(rows[2], below)
        graph.backward(F.sum(h))
        total = np.tanh(x[0] * 0.5) + np.tanh(x[1] * 0.5)
        np.testing.assert_allclose(kept.value, total, rtol=1e-12)
        expected = 1 - np.tanh(x[2] * 0.5 + total) ** 2
        np.testing.assert_allclose(kept.gradient, expected, rtol=1e-12)


def test_a_part_of_a_total_that_a_call_was_given_whole_cannot_be_kept():
    ((x, _),) = given((3,))
    with db.Graph(dtype="float64") as graph:
        rows = F.input(graph, x)
        below = db.total([step(rows[k], (WIDTH, WIDTH)) for k in (0, 1)])
        step(rows[2], below)
        raised(GraphError, below[0].keep, "step #", "was given the total", "fix:", "db.total")


# Random programs against PyTorch -----------------------------------------------------------------


class Program:
    """A random program made twice: in a graph, some of whose nodes are kept, and in PyTorch."""

    def __init__(self, graph, torch, seed):
        self.graph, self.torch = graph, torch
        self.random = np.random.default_rng(seed)
        shapes = {"W": (WIDTH, WIDTH), "U": (WIDTH, WIDTH), "V": (VOCABULARY, WIDTH)}
        arrays = {name: self.random.standard_normal(shape) for name, shape in shapes.items()}
        self.ours = SimpleNamespace(**{k: db.Parameter(v, k) for k, v in arrays.items()})
        self.theirs = SimpleNamespace(**{k: self.leaf(v) for k, v in arrays.items()})
        self.values, self.losses, self.kept, self.later = [], [], [], []

    def leaf(self, array):
        return self.torch.tensor(array, dtype=self.torch.float64, requires_grad=True)

    def add(self, node, tensor):
        assert node.shape == tuple(tensor.shape)
        pair = (node, tensor)
        if tensor.ndim:
            self.values.append(pair)
        else:
            self.losses.append(pair)
        tensor.retain_grad()
        choice = self.random.random()
        if choice < 0.25:
            node.keep()
        if choice < 0.4:
            self.kept.append(pair)  # some of them are kept only now and then, at the end at latest
        if self.random.random() < 0.08:
            read = self.kept[self.random.integers(len(self.kept))][0] if self.kept else node
            _ = read.value
        return pair

    def some(self, ndim, width=WIDTH):
        found = [p for p in self.values if p[1].ndim == ndim and p[1].shape[-1] == width]
        return found[self.random.integers(len(found))]

    def sentence(self, length):
        array = self.random.standard_normal((length, WIDTH))
        self.values = []
        self.add(F.input(self.graph, array), self.leaf(array))
        array = self.random.standard_normal(WIDTH)
        self.add(F.input(self.graph, array), self.leaf(array))
        before = len(self.losses)
        for _ in range(8):
            name = OPERATIONS[self.random.integers(len(OPERATIONS))]
            getattr(self, name)()
        self.cross_entropy()
        return self.losses[before:]

    def unary(self):
        node, tensor = self.some(self.random.integers(1, 3))
        self.add(F.tanh(node), self.torch.tanh(tensor))

    def multiply(self):
        ndim = self.random.integers(1, 3)
        a, b = self.some(ndim), self.some(ndim)
        if a[1].shape == b[1].shape:
            self.add(a[0] * b[0], a[1] * b[1])

    def in_place(self):
        node, tensor = self.some(2)
        for k in range(3):
            node, tensor = self.add(node * 0.5 + 0.1 * k, tensor * 0.5 + 0.1 * k)

    def logits(self):
        node, tensor = self.some(2)
        return self.add(F.linear(node, self.ours.V), tensor @ self.theirs.V.T)

    def cross_entropy(self):
        node, tensor = self.logits()
        for _ in range(self.random.integers(1, 3)):
            ids = self.random.integers(0, VOCABULARY, len(tensor))
            theirs = self.torch.nn.functional.cross_entropy(
                tensor, self.torch.tensor(ids), reduction="sum"
            )
            self.add(F.cross_entropy(node, ids, reduction="sum"), theirs)
        if self.random.random() < 0.3:
            self.add(F.sum(F.softmax(node) * 2.0, dim=0) * 0.1,
                     (tensor.softmax(-1) * 2.0).sum(0) * 0.1)  # fmt: skip

    def row(self):
        node, tensor = self.some(2)
        if len(tensor):
            k = int(self.random.integers(len(tensor)))
            self.add(node[k], tensor[k])

    def sum_rows(self):
        node, tensor = self.some(2)
        self.add(F.sum(node, dim=0), tensor.sum(0))

    def concat(self):
        a, b = self.some(2), self.some(1)
        joined = self.torch.cat([a[1], b[1][None]])
        node, tensor = self.add(F.concat([a[0], b[0]], dim=0), joined)
        self.add(node[1:], tensor[1:])

    def scan(self):
        node, tensor = self.some(2)
        init = self.some(1)
        outputs, (last, _) = db.scan(recurrence, node, init=(init[0], WIDTH), params=self.ours)
        h, c = init[1], self.torch.zeros(WIDTH, dtype=self.torch.float64)
        rows = []
        for x in tensor:
            h, c = self.theirs_step(x, h, c)
            rows.append(h)
        whole = self.torch.stack(rows) if rows else tensor[:0] * 1.0
        self.add(outputs, whole)
        self.add(last, h.clone())

    def theirs_step(self, x, h, c):
        c = c * 0.5 + self.torch.tanh(x @ self.theirs.W.T + h @ self.theirs.U.T)
        return self.torch.tanh(c), c

    def calls(self):
        """A step, a step that reads it, and what joins them."""
        x, init = self.some(1), self.some(1)
        made = []
        for k in range(3):
            ours = (x[0], WIDTH) if not k else made[-1][0]
            theirs = (x[1], self.torch.zeros(WIDTH, dtype=self.torch.float64))
            h, c = self.theirs_step(init[1], *(theirs if not k else made[-1][1]))
            made.append((call(init[0], ours, self.ours), (h.clone(), c.clone())))
        for result, tensors in made:
            for part, tensor in zip(result, tensors, strict=True):
                self.add(part, tensor)
        choice = self.random.integers(3)
        results, tensors = zip(*made, strict=True)
        sums = tuple(sum(parts[1:], parts[0]) for parts in zip(*tensors, strict=True))
        if choice == 0:
            stacked = db.stack(list(results))
            for node, parts in zip(stacked, zip(*tensors, strict=True), strict=True):
                self.add(node, self.torch.stack(parts))
            return
        total = db.total(list(results))
        if choice == 1:
            self.add(total[0], sums[0])
            sums = (self.values[-1][1], sums[1])
        h, c = self.theirs_step(init[1], *sums)
        result = call(init[0], total, self.ours)
        self.add(result[0], h.clone())


OPERATIONS = ["unary", "multiply", "in_place", "cross_entropy", "row", "sum_rows", "concat",
              "scan", "calls"]  # fmt: skip


@db.cell
def recurrence(x, state, p):
    h, c = state
    c = c * 0.5 + F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    h = F.tanh(c)
    return h, (h, c)


@db.cell
def call(x, state, p):
    h, c = state
    c = c * 0.5 + F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return F.tanh(c), c


def least_limit(graph, loss):
    """The lowest memory limit that the run can keep to."""
    try:
        graph.estimate(loss, memory_limit=1)
    except MemoryLimitError as error:
        return error.least_bytes
    raise AssertionError


@pytest.mark.parametrize("mode", ["plain", "limited", "check"])
@pytest.mark.parametrize("seed", quick(range(6), range(12)))
def test_kept_nodes_of_random_programs_have_the_values_and_gradients_of_pytorch(seed, mode):
    torch = pytest.importorskip("torch")
    with db.Graph(dtype="float64", pool=NanPool(), check=mode == "check") as graph:
        program = Program(graph, torch, seed)
        losses = [pair for length in (3, 0, 1, 2) for pair in program.sentence(length)]
        loss = F.mean([node for node, _ in losses])
        for node, _ in program.kept:
            node.keep()
        limit = least_limit(graph, loss) if mode == "limited" else None
        graph.backward(loss, memory_limit=limit)
        sum(tensor for _, tensor in losses).div(len(losses)).backward()
        for node, tensor in program.kept:
            np.testing.assert_allclose(node.value, tensor.detach(), rtol=1e-9, atol=1e-12)
            expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            np.testing.assert_allclose(node.gradient, expected, rtol=1e-7, atol=1e-11)
        for name, theirs in vars(program.theirs).items():
            ours = getattr(program.ours, name)
            if theirs.grad is not None:
                np.testing.assert_allclose(ours.grad, theirs.grad, rtol=1e-7, atol=1e-11)
