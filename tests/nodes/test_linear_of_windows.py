"""A linear map of windows that nothing else reads is made without storing them."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing import NanPool, check_batching, check_gradient

LENGTHS = (5, 0, 1, 9, 2, 3)


def parameters(outputs=6, inputs=12):
    generator = np.random.default_rng(0)
    return [
        db.Parameter(generator.standard_normal(shape) * 0.3, name)
        for shape, name in (((outputs, inputs), "weight"), ((outputs,), "bias"))
    ]


def run(lengths=LENGTHS, how=(3, 1, 2), keep=(), dtype="float64", policy="by_bound", readers=1):
    """Types of the steps, and bits or values of all that comes out."""
    weight, bias = parameters()
    generator = np.random.default_rng(1)
    with db.Graph(dtype=dtype, policy=policy, pool=NanPool()) as graph:
        losses, kept, xs = [], [], []
        for k, length in enumerate(lengths):
            x = F.input(graph, generator.standard_normal((length, 4))).keep()
            windows = F.windows(x, *how)
            maps = [F.tanh(F.linear(windows, weight, bias) * (n + 1.0)) for n in range(readers)]
            if k in keep:
                kept.append(windows.keep())
            losses += [F.sum(y * y).keep() for y in maps]
            xs.append(x)
        graph.backward(F.mean(losses))
        kinds = [type(node).__name__ for step in graph._executor.steps for node in step.nodes]
        values = [weight.grad, bias.grad, *[x.gradient for x in xs]]
        return kinds, [float(loss.value) for loss in losses], values, [w.gradient for w in kept]


@pytest.mark.parametrize("policy", ["by_bound", "one_by_one"])
@pytest.mark.parametrize("how", [(3, 1, 2), (3, 1, 0), (3, 2, 1), (3, 4, 1)])
@pytest.mark.parametrize("readers", [1, 2])
def test_windows_that_are_kept_change_nothing_else(how, policy, readers):
    kinds, losses, values, _ = run(how=how, policy=policy, readers=readers)
    assert "Windows" not in kinds and kinds.count("LinearOfWindows") == readers * len(LENGTHS)
    both, same_losses, same_values, gradients = run(
        how=how, policy=policy, readers=readers, keep=range(3)
    )
    assert both.count("Windows") == 3 and both.count("LinearOfWindows") == readers * 3
    assert losses == same_losses
    for one, other in zip(values, same_values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)
    assert gradients[0].any()


def test_a_sentence_has_the_same_bits_alone_and_in_a_mini_batch():
    _, together, values, _ = run(dtype="float32")
    for k, length in enumerate(LENGTHS):
        weight, bias = parameters()
        generator = np.random.default_rng(1)
        arrays = [generator.standard_normal((n, 4)) for n in LENGTHS]
        with db.Graph(dtype="float32") as graph:
            x = F.input(graph, arrays[k]).keep()
            y = F.tanh(F.linear(F.windows(x, 3, padding=2), weight, bias) * 1.0)
            loss = F.sum(y * y).keep()
            graph.backward(loss / len(LENGTHS))
            assert float(loss.value) == together[k]
            assert x.gradient.tobytes() == values[2 + k].tobytes()
        assert x.shape == (length, 4)


def test_windows_read_by_another_node_are_stored_once():
    weight, bias = parameters()
    with db.Graph() as graph:
        windows = F.windows(F.input(graph, np.ones((4, 4))), 3)
        loss = F.sum(F.linear(windows, weight, bias)) + F.sum(windows)
        graph.backward(loss)
        assert "Windows" in graph.explain() and "LinearOfWindows" not in graph.explain()


def test_windows_that_are_read_after_the_run_have_their_value():
    weight, bias = parameters()
    with db.Graph() as graph:
        x = F.input(graph, np.arange(8.0).reshape(2, 4)).keep()
        windows = F.windows(x, 3, padding=2)
        y = F.linear(windows, weight, bias).keep()
        graph.forward()
        windows.keep()
        expected = windows.value @ weight.value.T + bias.value
        np.testing.assert_allclose(y.value, expected, rtol=1e-5)


def test_a_loss_of_the_map_takes_its_windows_stored():
    weight, bias = parameters()
    with db.Graph() as graph:
        windows = F.windows(F.input(graph, np.ones((4, 4))), 3)
        loss = F.cross_entropy(F.linear(windows, weight, bias), [1, 2])
        graph.backward(loss)
        assert "LinearCrossEntropy" in graph.explain() and "Windows" in graph.explain()
        assert "LinearOfWindows" not in graph.explain()


def test_batches_and_differentiates_inside_a_block_too():
    weight, bias = parameters()

    @db.block
    def convolved(x):
        return F.tanh(F.linear(F.windows(x, 3, padding=2), weight, bias))

    def build(graph, x):
        return convolved(x)

    shapes = [[(length, 4)] for length in LENGTHS]
    check_batching(build, shapes=shapes, parameters=[weight, bias])
    check_gradient(build, shapes=[(5, 4)], parameters=[weight, bias])
    check_gradient(
        lambda graph, x: F.linear(F.windows(x, 3, stride=2), weight, bias),
        shapes=[(7, 4)], parameters=[weight, bias],
    )  # fmt: skip


def test_the_peak_does_not_hold_the_windows():
    weight, bias = parameters(8, 4 * 64)

    def peak(keep):
        with db.Graph() as graph:
            for _ in range(40):
                windows = F.windows(F.input(graph, np.ones((500, 64))), 4)
                if keep:
                    windows.keep()
                F.linear(windows, weight, bias).keep()
            graph.forward()
            return graph.statistics.peak_bytes

    assert peak(False) < 0.8 * peak(True)


def test_a_cell_maps_windows_of_its_memory():
    weight, _ = parameters(3, 6)

    @db.cell
    def cell(x, state, params, memory):
        y = F.tanh(x + state + F.max(F.linear(F.windows(memory, 2), weight), dim=0))
        return y, y

    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.ones((1, 3)))
        memory = np.random.default_rng(2).standard_normal((5, 3))
        zeros = F.constant(graph, 0.0, (3,))
        y, _ = db.scan(cell, x, zeros, memory=F.input(graph, memory))
        windows = np.concatenate((memory[:-1], memory[1:]), axis=1)
        expected = np.tanh(1 + (windows @ weight.value.T).max(axis=0))
        np.testing.assert_allclose(y.value[0], expected, rtol=1e-12)
