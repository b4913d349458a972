"""A refusal of a GPU is an error that says for whom, and leaves graph, pool and queue usable."""

import importlib
import re
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import backend, models
from dynbatch import nodes as F
from dynbatch.errors import BackendError, OutOfMemory
from dynbatch.kernels.cuda.runtime.launch import Launch
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.memory import DeviceMemory, Pool
from tests.reference_models import Tagger, sentences

BATCH = sentences([3, 1, 7, 0, 2])


@pytest.fixture
def model(cuda):
    model = Tagger()
    for parameter in model.parameters():
        parameter.to("cuda")
    return model


def failing(name, error, after=0):
    """`Launch.start` that fails for one kernel, a pattern, from its launch number `after` on."""
    start, count = Launch.start, [0]

    def wrong(self, *args):
        is_it = re.fullmatch(f"kernel {name}", str(self)) is not None
        count[0] += is_it
        if is_it and count[0] > after:
            raise error
        start(self, *args)

    return wrong


def step(model, **settings):
    with db.Graph("cuda", **settings) as graph:
        loss = F.mean(model.losses(graph, BATCH))
        graph.backward(loss)
    return float(loss.value), [grad_of(p) for p in model.parameters()]


def grad_of(parameter):
    return db.testing.precision.dense_gradient(parameter)


def zero_grad(model):
    for parameter in model.parameters():
        parameter.zero_grad()


# The bias before it joins the function's kernel, unless each step is started by itself.
TANH = r"(add_then_tanh_\w+|elementwise_tanh)"


@pytest.mark.parametrize("kernel", [TANH, "elementwise_tanh_backward", "softmax_loss"])
@pytest.mark.parametrize("check", [False, True])
def test_a_kernel_that_fails_names_node_and_batch_and_the_run_can_be_repeated(
    model, monkeypatch, kernel, check
):
    expected = step(model)
    zero_grad(model)
    pool = Pool(upstream=DeviceMemory())
    kind = "LinearCrossEntropy #4" if kernel == "softmax_loss" else "Tanh #2"
    with db.Graph("cuda", pool=pool, check=check) as graph:
        loss = F.mean(model.losses(graph, BATCH))
        with monkeypatch.context() as patch:
            patch.setattr(Launch, "start", failing(kernel, RuntimeError("launch failure")))
            message = f"{kind}, in a batch of 5: kernel {kernel} failed on the GPU: RuntimeError"
            with pytest.raises(BackendError, match=message):
                graph.backward(loss)
        assert [p.grad for p in model.parameters()] == [None] * 4
        assert queue().waiting() == [] and pool.used_bytes == 0 and not graph.plans
        graph.backward(loss)
    assert float(loss.value) == expected[0]
    for parameter, gradient in zip(model.parameters(), expected[1], strict=True):
        assert np.array_equal(grad_of(parameter), gradient)
    assert pool.used_bytes == 0


def test_values_read_before_a_backward_that_fails_are_still_there(model, monkeypatch):
    with db.Graph("cuda") as graph:
        losses = model.losses(graph, BATCH)
        values = [loss.value for loss in losses]
        with monkeypatch.context() as patch:
            patch.setattr(Launch, "start", failing("elementwise_tanh_backward", OSError("lost")))
            with pytest.raises(BackendError, match="Tanh #2"):
                graph.backward(F.mean(losses))
        assert [loss.value for loss in losses] == values
        graph.backward(F.mean(losses))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradients_that_were_being_added_to_are_forgotten(model, monkeypatch):
    step(model)
    with monkeypatch.context() as patch:
        patch.setattr(Launch, "start", failing("accumulate", RuntimeError("launch failure")))
        with pytest.raises(BackendError, match="kernel accumulate"):
            step(model)
    assert [p.grad for p in model.parameters()] == [None] * 4
    step(model)


def test_a_product_that_fails_names_its_node(model, monkeypatch, cuda):
    with db.Graph("cuda") as graph:
        losses = model.losses(graph, BATCH)
        with monkeypatch.context() as patch:
            for name in ("sgemm", "gemmEx"):
                if hasattr(cuda.cuda.cublas, name):
                    patch.setattr(cuda.cuda.cublas, name, refuse)
            queue()._cublas.clear()
            with pytest.raises(
                BackendError, match=r"LinearMap #1, in a batch of 5: a product of cuBLAS"
            ):
                graph.forward()
        queue()._cublas.clear()
        graph.forward()
        assert all(np.isfinite(loss.value) for loss in losses)


def refuse(*args):
    raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")


# Memory -------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(cuda):
    """little_memory(bytes): no more than so many bytes above what is in use now."""
    if not hasattr(cuda, "settings"):
        pytest.skip("the memory of a GPU is not limited for a test")
    from tests.cuda.fake_cupy import memory

    before = cuda.settings.memory_bytes

    def limit(size):
        cuda.settings.memory_bytes = memory.used_bytes() + size

    yield limit
    cuda.settings.memory_bytes = before


def test_an_arena_that_does_not_fit_names_what_used_the_bytes(model, little_memory):
    step(model)
    pool = Pool(upstream=DeviceMemory())
    with db.Graph("cuda", pool=pool) as graph:
        loss = F.mean(model.losses(graph, sentences([500, 400])))
        little_memory(10_000)
        with pytest.raises(OutOfMemory) as caught:
            graph.backward(loss)
        message = str(caught.value)
        assert "pool: the GPU has no " in message and "arrays of CuPy hold " in message
        assert "by type LinearCrossEntropy 25,216, LinearMap 21,600, " in message
        little_memory(1_000_000)
        graph.backward(loss)
    assert np.isfinite(loss.value)
    assert pool.used_bytes == 0


def test_memory_that_the_pool_holds_unused_is_given_back_to_arrays_of_cupy(model, little_memory):
    pool = Pool(upstream=DeviceMemory())
    with db.Graph("cuda", pool=pool) as graph:
        graph.backward(F.mean(model.losses(graph, sentences([2000]))))
    zero_grad(model)
    for parameter in model.parameters():
        parameter._buffer = None
    held = pool.reserved_bytes
    assert held > 100_000
    with db.Graph("cuda", pool=pool) as graph:
        loss = F.mean(model.losses(graph, BATCH))
        little_memory(0)
        graph.backward(loss)
    assert np.isfinite(loss.value)
    assert pool.reserved_bytes < held


def test_no_memory_for_what_a_batch_works_with(model, little_memory, monkeypatch, cuda):
    step(model)
    zero_grad(model)
    with db.Graph("cuda") as graph:
        loss = F.mean(model.losses(graph, BATCH))
        with monkeypatch.context() as patch:
            patch.setattr(cuda, "empty", out_of_memory)
            with pytest.raises(
                OutOfMemory, match=r"Total #\d+, in a batch of 1: the GPU has no memory left"
            ):
                graph.backward(loss)
        assert [p.grad for p in model.parameters()] == [None] * 4
        graph.backward(loss)


def test_a_run_that_found_no_memory_is_tried_again_with_what_the_pool_gave_back(
    model, monkeypatch, cuda
):
    pool = Pool(upstream=DeviceMemory())
    pool.give(pool.take(100_000, np.float32))
    empty, calls = cuda.empty, []

    def once(*args, **named):
        calls.append(pool.reserved_bytes)
        if calls[-1] >= 400_000:
            raise MemoryError("Out of memory")
        return empty(*args, **named)

    with db.Graph("cuda", pool=pool) as graph:
        loss = F.mean(model.losses(graph, BATCH))
        monkeypatch.setattr(cuda, "empty", once)
        graph.backward(loss)
        assert graph.statistics.batches == 5 and len(graph.plans) == 1
    assert calls[0] >= 400_000 > max(calls[1:])
    assert np.isfinite(loss.value)


def out_of_memory(*args, **named):
    raise MemoryError("Out of memory allocating 512 bytes")


# No GPU -------------------------------------------------------------------------------------------


class Driver(RuntimeError):
    """An error such as CuPy raises for the runtime's."""


def cupy_that(count):
    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=Driver)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), ndarray=type("ndarray", (), {}))


def too_old():
    raise Driver("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


@pytest.mark.parametrize(
    ("found", "pieces"),
    [
        (None, ("CuPy cannot be imported", "pip install 'dynbatch[cuda13]'")),
        (cupy_that(lambda: 0), ("no GPU was found", 'device="cpu"')),
        (cupy_that(too_old), ("driver version is insufficient", "install an NVIDIA driver")),
    ],
    ids=["no CuPy", "no GPU", "old driver"],
)
@pytest.mark.parametrize(
    "ask", [lambda: db.Graph("cuda"), lambda: models.Linear(2, 3, rng=0).to("cuda")],
    ids=["Graph", "Module.to"],
)  # fmt: skip
def test_without_a_usable_gpu_one_sentence_says_what_to_do(monkeypatch, found, pieces, ask):
    def find(name):
        if found is None:
            raise ImportError("No module named 'cupy'")
        return found

    monkeypatch.setattr(backend, "importlib", SimpleNamespace(import_module=find))
    with pytest.raises(BackendError) as caught:
        ask()
    message = str(caught.value)
    assert message.startswith("CUDA is not available: ")
    assert all(piece in message for piece in pieces)
    assert importlib.import_module("dynbatch") is db
