"""Gradients of ranks on one machine lie in memory that all have: nothing is packed or sent."""

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch import parallel
from dynbatch.parallel import shared_gradients, shared_memory
from dynbatch.parameter import Parameter
from tests.forks import in_child
from tests.parallel.ranks import count_messages, on_ranks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux alone has it"),
    pytest.mark.usefixtures("young_heap"),
]

SHAPES = {"wide": (300, 80), "odd": (7, 3), "double": (200, 101), "long": (20_001,)}


def parameters():
    own = {name: Parameter(np.zeros(shape, np.float32), name) for name, shape in SHAPES.items()}
    own["double"].replace(np.zeros(SHAPES["double"]))
    return own


def gradient(name, rank, step):
    """A gradient of a rank's backward: numbers whose sum depends on the order."""
    rng = np.random.default_rng([rank, step, len(name)])
    dtype = np.float64 if name == "double" else np.float32
    return (rng.standard_normal(SHAPES[name]) * 10.0 ** rng.integers(-3, 4)).astype(dtype)


def wanted(name, size, step):
    """The sum in the order of ranks."""
    total = gradient(name, 0, step)
    for rank in range(1, size):
        total = total + gradient(name, rank, step)
    return total


def summed(communicator, steps=3, without=()):
    """Gradients of all parameters after each of some sums; and what was sent for the last one."""
    own = parameters()
    found, sent = [], count_messages(communicator)
    for step in range(steps):
        for name, each in own.items():
            if not (name in without and step == 0):
                np.copyto(each.gradient_buffer(), gradient(name, communicator.rank, step))
                each.grad = each.gradient_buffer()
        sent.clear()
        parallel.sum_gradients(communicator, own.values())
        found.append({name: None if p.grad is None else p.grad.copy() for name, p in own.items()})
        for each in own.values():
            each.zero_grad()
    return found, list(sent)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_have_the_bits_of_messages_and_nothing_large_is_sent(size):
    for found, sent in on_ranks(size, summed):
        for step, gradients in enumerate(found):
            for name, grad in gradients.items():
                np.testing.assert_array_equal(grad, wanted(name, size, step), err_msg=name)
        assert sum(sent) < 1000 * size  # of 337,000 bytes


def test_a_parameter_that_has_its_first_gradient_later_gets_a_place_then():
    for found, _ in on_ranks(2, lambda communicator: summed(communicator, without=("wide", "odd"))):
        assert found[0]["wide"] is None
        for step, gradients in enumerate(found):
            for name, grad in gradients.items():
                if grad is not None:
                    np.testing.assert_array_equal(grad, wanted(name, 2, step), err_msg=name)


def test_a_parameter_without_rows_gets_its_first_gradient_alone():
    def do(communicator):
        weight, empty = Parameter(np.ones((200, 200))), Parameter(np.ones((0, 3)))
        for parameters in ([weight], [weight, empty], [weight, empty]):
            for each in parameters:
                each.grad = np.ones(each.shape)
            sent = count_messages(communicator)
            parallel.sum_gradients(communicator, parameters)
        return sum(sent) < 1000, float(weight.grad.max()), empty.grad.shape

    assert on_ranks(2, do) == [(True, 2.0, (0, 3))] * 2


def test_backward_writes_gradients_where_they_are_summed(monkeypatch):
    """From the second step on no gradient is copied."""
    copied = []

    def do(communicator):
        weight = Parameter(np.ones((200, 200), np.float32))
        grads = []
        for step in range(3):
            with db.Graph() as graph:
                x = F.input(graph, np.full((2, 200), 1.0 + step, np.float32))
                graph.backward(F.sum(F.linear(x, weight)))
            if communicator.rank == 0 and step == 2:
                monkeypatch.setattr(Parameter, "keep_gradient_in", noted)
            parallel.sum_gradients(communicator, [weight])
            grads.append(weight.grad)
            np.testing.assert_array_equal(weight.grad, np.full((200, 200), 4.0 * (1 + step)))
            weight.zero_grad()
            communicator.barrier()
        return all(grad is grads[0] for grad in grads)

    keep = Parameter.keep_gradient_in

    def noted(parameter, memory):
        copied.append(parameter.grad is not memory)
        keep(parameter, memory)

    assert on_ranks(2, do) == [True, True]
    assert copied in ([False], [False, False])


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [(os, "memfd_create", 0), (os, "posix_fallocate", 0), (mmap, "mmap", 0), (mmap, "mmap", 1)],
)
def test_without_common_memory_messages_are_sent(module, name, at, monkeypatch):
    """What one rank lacks, room or a right, none of them uses."""
    original, calls = getattr(module, name), []

    def refused_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1 + at:
            raise OSError(12, "Cannot allocate memory")
        return original(*arguments)

    monkeypatch.setattr(module, name, refused_once)
    before = len(os.listdir("/proc/self/fd"))
    for found, sent in on_ranks(2, summed):
        for step, gradients in enumerate(found):
            for name, grad in gradients.items():
                np.testing.assert_array_equal(grad, wanted(name, 2, step), err_msg=name)
        assert sum(sent) > 4 * 300 * 80
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def square(value):
    return np.full((200, 200), value, np.float32)


def summed_twice(communicator, first, second):
    """The gradients of parameters, of 1 + rank each, summed; and those of others after them."""
    found = []
    for parameters in (first, second):
        for each in parameters:
            each.grad = square(1.0 + communicator.rank)
        parallel.sum_gradients(communicator, parameters)
        found.append([float(each.grad.max()) for each in parameters])
        for each in parameters:
            each.zero_grad()
    return found


def test_a_model_that_one_rank_has_made_anew_gets_other_places():
    def do(communicator):
        first = [Parameter(square(1.0))]
        second = [Parameter(square(1.0))] if communicator.rank == 0 else first
        return summed_twice(communicator, first, second)

    assert on_ranks(2, do) == [[[3.0], [3.0]]] * 2


def test_places_do_not_depend_on_the_order_of_parameters():
    def do(communicator):
        first = [Parameter(square(1.0)), Parameter(square(1.0))]
        return summed_twice(communicator, first, [first[communicator.rank]])

    assert on_ranks(2, do) == [[[3.0, 3.0], [3.0]]] * 2


def test_gradients_are_exchanged_between_parameters():
    def do(communicator):
        one, other = Parameter(square(1.0)), Parameter(square(1.0))
        one.grad, other.grad = square(1.0), square(2.0)
        parallel.sum_gradients(communicator, [one, other])
        one.grad, other.grad = other.grad, one.grad
        parallel.sum_gradients(communicator, [one, other])
        return float(one.grad.max()), float(other.grad.max())

    assert on_ranks(2, do) == [(8.0, 4.0)] * 2


def test_memory_that_was_taken_away_stays_unchanged():
    def do(communicator):
        weight = Parameter(square(1.0))
        weight.grad = square(1.0)
        parallel.sum_gradients(communicator, [weight])
        kept = weight.grad
        weight.put_aside()
        weight.grad = square(5.0)
        parallel.sum_gradients(communicator, [weight])
        return float(kept.max()), float(weight.grad.max())

    assert on_ranks(2, do) == [(2.0, 10.0)] * 2


def test_a_forked_process_writes_gradients_to_memory_of_its_own():
    def do(communicator):
        weight = Parameter(np.ones((200, 200), np.float32))
        weight.grad = np.ones((200, 200), np.float32)
        parallel.sum_gradients(communicator, [weight])
        communicator.barrier()
        if communicator.rank == 0:

            def check():
                kept = (weight.grad == 2).all()
                weight.grad[:] = 7
                weight.gradient_buffer()[:] = 7
                return bool(kept)

            assert in_child(check)
        communicator.barrier()
        return float(weight.grad.max())

    assert on_ranks(2, do) == [2.0, 2.0]


def test_a_forked_process_copies_what_is_shared_only():
    """A gradient on a GPU, where the parameter has moved since, could not be copied there."""

    def do(communicator):
        weight = weights[communicator.rank]
        weight.grad = square(1.0)
        parallel.sum_gradients(communicator, [weight])
        communicator.barrier()
        if communicator.rank == 0:
            weight.put_aside()
            weight.grad = grad
            assert in_child(lambda: weight.grad is grad)
        communicator.barrier()

    grad, weights = square(5.0), [Parameter(square(1.0)) for _ in range(2)]
    on_ranks(2, do)
    for weight in weights:
        weight.put_aside()
        weight.grad = grad
    assert in_child(lambda: all([weight.grad is grad for weight in weights]))


def mapped():
    """The blocks of memory that this process, of all ranks here, has in common with others."""
    return Path("/proc/self/maps").read_text("ascii").count(f"memfd:{shared_memory.NAME}")


def mapped_before():
    """Memory mapped by other tests, of which an error may hold some."""
    gc.collect()
    return mapped()


def test_memory_is_given_back_when_the_run_is_closed():
    weights = [Parameter(square(1.0)) for _ in range(2)]

    def do(communicator):
        weight = weights[communicator.rank]
        weight.grad = square(1.0)
        parallel.sum_gradients(communicator, [weight])

    before = mapped_before()
    for _ in range(2):
        on_ranks(2, do)
        gc.collect()
        assert mapped() <= before
        assert [float(each.grad.max()) for each in weights] == [2.0, 2.0]


def test_memory_is_given_back_with_the_parameters():
    def do(communicator):
        weight = Parameter(np.ones((200, 200), np.float32))
        weight.grad = np.ones((200, 200), np.float32)
        parallel.sum_gradients(communicator, [weight])
        communicator.barrier()
        found = mapped()
        communicator.barrier()
        return found

    before, placed = mapped_before(), len(shared_gradients._in_use)
    assert min(on_ranks(2, do)) == before + 2  # both ranks are of one process here
    gc.collect()
    assert mapped() <= before
    assert len(shared_gradients._in_use) <= placed
