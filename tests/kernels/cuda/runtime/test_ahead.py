"""Kernels that a flush is the first to start are compiled side by side, and started in order."""

import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch.errors import BackendError
from dynbatch.kernels import elementwise
from dynbatch.kernels.cuda.runtime import ahead, source
from dynbatch.kernels.cuda.runtime import queue as queues
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.queue import Queue
from dynbatch.kernels.unary import activations
from tests.cuda import fake_cupy
from tests.cuda.devices import simulated
from tests.interruptions import broken_off

N = 33
VALUES = {
    "double_it": "2 * x[i]", "add_one": "x[i] + 1", "square": "x[i] * x[i]", "no_kernel": "unknown",
}  # fmt: skip
KERNEL = """
extern "C" __global__ void {name}(REAL* x, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = {value};
}}
"""
NAMES = tuple(VALUES)[:3]  # those that compile
TEXT = source.join(
    "steps.cu", "".join([KERNEL.format(name=name, value=value) for name, value in VALUES.items()])
)
RESULT = ((3 * 2) + 1) ** 2


@pytest.fixture(autouse=True)
def three_processors(monkeypatch):
    monkeypatch.setattr(ahead, "own_processors", lambda: 3)


@pytest.fixture
def queue(cupy):
    return new_queue(cupy)


def new_queue(cupy):
    made = Queue(cupy)
    made.kernels("float32").add(TEXT)
    return made


def threes(queue):
    return queue.cupy.asarray(np.full(N, 3, np.float32))


def launch(queue, x, *names):
    for name in names:
        queue.label = f"node of {name}"
        queue.launch(np.dtype("float32"), name, (2,), (32,), (x, N))


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that are compiled, in order of their ends, and in which threads."""
    names, compile_one = [], Kernels.compile

    def compile_and_note(self, name):
        result = compile_one(self, name)
        names.append((name, threading.current_thread()))
        return result

    monkeypatch.setattr(Kernels, "compile", compile_and_note)
    return names


def test_they_are_compiled_at_the_same_time_once_and_started_in_order(queue, monkeypatch, compiled):
    all_at_once, compile_one = threading.Barrier(len(NAMES)), Kernels.compile
    turns = {name: threading.Event() for name in NAMES}

    def compile_last_first(self, name):
        all_at_once.wait(60)
        later = NAMES[NAMES.index(name) + 1 :]
        if later:
            turns[later[0]].wait(60)
        try:
            return compile_one(self, name)
        finally:
            turns[name].set()

    monkeypatch.setattr(Kernels, "compile", compile_last_first)
    x = threes(queue)
    launch(queue, x, *NAMES, *NAMES[:1])
    queue.flush()
    assert x.get().tolist() == [RESULT * 2] * N
    assert [name for name, _ in compiled] == [*NAMES[::-1]]
    launch(queue, x, *NAMES)
    queue.flush()
    assert len(compiled) == len(NAMES)


def test_one_that_is_alone_is_compiled_by_the_thread_that_starts_it(queue, compiled):
    launch(queue, threes(queue), "add_one", "add_one")
    queue.flush()
    assert compiled == [("add_one", threading.current_thread())]


def test_a_loop_needs_its_kernels_and_none_that_no_step_starts(queue, compiled):
    for as_steps in (False, True):
        made, x = new_queue(queue.cupy), threes(queue)
        loop = PreparedLoop(made, np.dtype("float32"), 2)
        for name in NAMES[:2]:
            loop.kernel(name, (2,), (32,), (x, N))
        loop.kernel("no_kernel", (2,), (32,), (x, N), where=False)
        for item in [loop.step(0), loop.step(1)] if as_steps else [loop]:
            made.add(item)
        assert made.kernels("float32").needed == [*NAMES[:2]]
        made.flush()
        assert x.get().tolist() == [(3 * 2 + 1) * 2 + 1] * N
        assert not made.kernels("float32").needed
    assert {name for name, _ in compiled} == {*NAMES[:2]}


def test_a_kernel_that_does_not_compile_is_an_error_of_its_launch(queue, compiled):
    x = threes(queue)
    launch(queue, x, "double_it", "no_kernel", "add_one")
    for _ in range(2):
        message = r"(?s)^node of no_kernel: kernel no_kernel failed on the GPU: .*unknown"
        with pytest.raises(BackendError, match=message):
            queue.flush()
        assert x.get().tolist() == [6] * N  # what was before it has been started, as ever
        assert not queue.kernels("float32").ahead and not queue.waiting()
        launch(queue, x, "no_kernel")
    queue.discard()
    launch(queue, x, "add_one", "square")
    queue.flush()
    assert x.get().tolist() == [49] * N
    assert [name for name, _ in compiled].count("double_it") == 1


def test_a_thread_that_finds_no_memory_is_followed_by_one_more_attempt(queue, monkeypatch):
    """CuPy's pool has given back what it holds unused by then."""
    compile_one, causes = Kernels.compile, [RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")]

    def compile_in_vain(self, name):
        if name == "add_one" and causes:
            raise causes.pop()
        return compile_one(self, name)

    monkeypatch.setattr(Kernels, "compile", compile_in_vain)
    x = threes(queue)
    launch(queue, x, *NAMES)
    queue.flush()
    assert x.get().tolist() == [RESULT] * N and not causes


def test_a_text_of_the_users_is_one_module_whichever_of_its_kernels_comes_first(queue, monkeypatch):
    """Its kernels may share memory of the device: two threads must not make two modules of it."""
    text = "".join([KERNEL.format(name=name, value=VALUES[name]) for name in NAMES])
    own, inside, texts = source.own(text, ("file.py", 1)), [], set()
    module = queue.cupy.RawModule

    class Noted:
        def __init__(self, *, code, options):
            texts.add(code)
            self.made = module(code=code, options=options)

        def get_function(self, name):
            assert not inside
            inside.append(name)
            try:
                return self.made.get_function(name)
            finally:
                inside.pop()

    monkeypatch.setattr(queue.cupy, "RawModule", Noted)
    queue.kernels("float32").add(own)
    x = threes(queue)
    launch(queue, x, *own.kernels)
    queue.flush()
    assert x.get().tolist() == [RESULT] * N and texts == {own.text}


@pytest.mark.parametrize("version", [(12, 3), (12, 4), (13, 0)])
def test_our_own_kernels_are_compiled_without_what_none_of_them_uses(queue, monkeypatch, version):
    own = source.own(KERNEL.format(name="one", value=1), ("file.py", 1))
    module, told = queue.cupy.RawModule, []

    def noted(*, code, options):
        told.append(options)
        return module(code=code, options=options)

    nvrtc = SimpleNamespace(getVersion=lambda: version)
    monkeypatch.setattr(queue.cupy.cuda, "nvrtc", nvrtc)
    monkeypatch.setattr(queue.cupy, "RawModule", noted)
    kernels = queue.kernels("float32")
    kernels.add(own)
    for key in ("fill", *own.kernels):
        kernels.compile(key)
    usual = ("-std=c++17", "-DREAL=float")
    assert told == [(*usual, "--minimal") if version >= (12, 4) else usual, usual]


def test_an_interrupt_ends_the_wait_and_the_flush_can_be_repeated(queue, monkeypatch):
    compile_one, goes_on = Kernels.compile, threading.Event()

    def compile_slowly(self, name):
        if name == "add_one":
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            goes_on.wait(60)
        return compile_one(self, name)

    x = threes(queue)
    launch(queue, x, *NAMES)
    with monkeypatch.context() as patch:
        patch.setattr(Kernels, "compile", compile_slowly)
        with pytest.raises(KeyboardInterrupt):
            queue.flush()
    kernels = queue.kernels("float32")
    assert not kernels.ahead and not kernels.needed and "add_one" not in kernels.known
    x = threes(queue)
    launch(queue, x, *NAMES)
    queue.flush()  # while the other thread is still at it
    goes_on.set()
    assert x.get().tolist() == [RESULT] * N


def test_broken_off_at_any_line_nothing_is_left_of_a_flush():
    with simulated():
        queue = new_queue(fake_cupy)

        def flush():
            queue.__init__(fake_cupy)
            queue.kernels("float32").add(TEXT)
            launch(queue, threes(queue), *NAMES)
            queue.flush()

        places = []
        for place, raised in broken_off(flush, ("runtime/ahead.py",)):
            places.append(place)
            assert isinstance(raised, KeyboardInterrupt)
            assert not queue.kernels("float32").ahead and not queue.waiting()
            x = threes(queue)
            launch(queue, x, *NAMES)
            queue.flush()
            assert x.get().tolist() == [RESULT] * N
        assert len(places) > 10


def test_threads_compile_for_the_device_of_the_queue(monkeypatch):
    devices, compile_one = [], Kernels.compile

    def compile_and_note(self, name):
        devices.append(fake_cupy.cuda.runtime.getDevice())
        return compile_one(self, name)

    monkeypatch.setattr(Kernels, "compile", compile_and_note)
    with simulated(devices=2), fake_cupy.cuda.Device(1):
        queue = new_queue(fake_cupy)
        launch(queue, threes(queue), *NAMES)
        queue.flush()
    assert devices == [1] * len(NAMES)


def test_a_function_that_another_one_joins_is_not_compiled_by_itself(cupy, monkeypatch, compiled):
    monkeypatch.setattr(queues, "_local", threading.local())
    x = cupy.asarray(np.full(N, -2, np.float32))
    for kernel in (activations.relu, activations.tanh):
        elementwise.apply(kernel, x, x)
    queues.queue().flush()
    assert x.get().tolist() == [0] * N
    assert [name.startswith("relu_then_tanh") for name, _ in compiled] == [True]


def test_a_lone_function_compiles_one_kernel(cupy, monkeypatch):
    monkeypatch.setattr(queues, "_local", threading.local())
    texts, module = [], cupy.RawModule

    def noted(*, code, options):
        texts.append(code)
        return module(code=code, options=options)

    monkeypatch.setattr(cupy, "RawModule", noted)
    x = cupy.asarray(np.zeros(N, np.float32))
    elementwise.apply(activations.tanh, x, x)
    queues.queue().flush()
    assert [list(source.signatures(text)) for text in texts] == [["elementwise_tanh"]]
