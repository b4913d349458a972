"""An upstream that fails at each of its allocations in turn: nothing is lost, nothing leaks."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import OutOfMemory
from dynbatch.memory import Arena, DeviceMemory, HostMemory, Pool
from dynbatch.testing import FailingMemory
from dynbatch.testing.precision import dense_gradient
from tests.memory.allocators import ALLOCATORS
from tests.reference_models import Tagger, sentences

BATCH = sentences([30, 1, 70, 20], seed=3)
LATER = sentences([50, 40], seed=4)
NEVER = range(0)
FOR_GOOD = range(1, 1 << 60)


class Step:
    """A graph's work, part by part; `values` has what each part gave."""

    def __init__(self, graph, model):
        self.graph, self.model, self.values = graph, model, {}

    def parts(self):
        raise NotImplementedError

    def see(self, name, *nodes):
        self.values[name] = [np.asarray(value) for value in self.graph.values(nodes)]


class ForwardOnly(Step):
    """Three runs; the later ones read what the first left."""

    def parts(self):
        hidden = [self.model.hidden(self.graph, words) for words, _ in BATCH]
        yield lambda: self.see("hidden", *hidden)
        sums = [F.sum(h * h) for h in hidden]
        yield lambda: self.see("sums", *sums)
        losses = self.model.losses(self.graph, LATER)
        yield lambda: self.see("losses", *losses)


class Training(Step):
    """One run."""

    def parts(self):
        loss = F.mean(self.model.losses(self.graph, BATCH))
        yield lambda: self.graph.backward(loss)
        self.see("loss", loss)


class TrainingAfterValues(Step):
    """Runs for values, kept ones among them; a backward through all; a run after it."""

    def parts(self):
        kept = self.kept = [self.model.hidden(self.graph, words).keep() for words, _ in BATCH]
        yield lambda: self.see("kept", *kept)
        losses = self.model.losses(self.graph, LATER)
        yield lambda: self.see("losses", *losses)
        loss = F.mean([*losses, *[F.sum(h * h) for h in kept]])
        yield lambda: self.graph.backward(loss)
        self.see("loss", loss)
        again = [F.sum(h) for h in kept]
        yield lambda: self.see("again", *again)
        self.values["gradients of kept"] = [np.asarray(h.gradient) for h in kept]


def state(graph, pool, step):
    """The state that a failure must not change."""
    gradients = [
        None if parameter.grad is None else dense_gradient(parameter).tolist()
        for parameter in step.model.parameters()
    ]
    return pool.used_bytes, len(graph.plans), list(step.values), gradients


def run(kind, device, pool, memory, fails=NEVER):
    """(values and gradients of a step whose memory fails, whether an error was seen)."""
    model, seen = Tagger(seed=5), False
    for parameter in model.parameters():
        parameter.to(device)
    memory.fails = fails
    with db.Graph(device, pool=pool) as graph:
        step = kind(graph, model)
        for part in step.parts():
            before = state(graph, pool, step)
            try:
                part()
                continue
            except OutOfMemory:
                seen = True
            assert state(graph, pool, step) == before
            memory.fails = NEVER
            part()
    assert pool.used_bytes == 0 and pool.on_loan() == {}
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if gradients:
        step.values["gradients"] = [dense_gradient(p) for p in model.parameters()]
    return step.values, seen


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, arrays in expected.items():
        for ours, theirs in zip(found[name], arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def below(allocator, device):
    """A pool of an allocator, and what fails below it: its upstream."""
    memory = FailingMemory(upstream=DeviceMemory() if device == "cuda" else HostMemory())
    return Pool(upstream=memory, allocator=allocator), memory


def above(allocator, device):
    """An allocator with one above it that fails: at each request, whatever it holds."""
    made = []

    def failing(upstream):
        made.append(FailingMemory(upstream=allocator(upstream)))
        return made[0]

    pool = Pool(upstream=DeviceMemory() if device == "cuda" else HostMemory(), allocator=failing)
    return pool, made[0]


PLACES = [(below, "arena"), (below, "size classes"), (below, "buddy"), (above, "arena")]


@pytest.mark.parametrize(("place", "name"), PLACES)
@pytest.mark.parametrize("kind", [ForwardOnly, Training, TrainingAfterValues])
def test_a_step_goes_on_after_its_memory_failed(device, kind, place, name):
    pool, memory = place(ALLOCATORS[name], device)
    expected, _ = run(kind, device, pool, memory)
    calls = memory.calls
    assert calls >= (1 if kind is Training else 2)
    for number in range(1, calls + 1):
        pool, memory = place(ALLOCATORS[name], device)
        found, seen = run(kind, device, pool, memory, fails=range(number, 1 << 60))
        assert seen, "the failure was not noticed"
        assert_equal(found, expected)
        pool.release()
        assert pool.reserved_bytes == 0
    for number in range(1, calls + 1):
        pool, memory = place(ALLOCATORS[name], device)
        found, seen = run(kind, device, pool, memory, fails={number})
        assert not seen, "one failure, and then room: nobody should notice"
        assert_equal(found, expected)


def test_values_read_before_are_readable_after_and_outside(device):
    pool, memory = below(Arena, device)
    with db.Graph(device, pool=pool) as graph:
        early = [F.tanh(F.input(graph, np.full((3, 4), 0.1 * k))).keep() for k in range(3)]
        values = graph.values(early)
        late = F.sum([F.sum(F.exp(x)) for x in early])
        memory.fails = FOR_GOOD
        with pytest.raises(OutOfMemory):
            graph.backward(F.sum(late * F.input(graph, [1.0] * 10_000)))
        assert all(np.array_equal(*pair) for pair in zip(graph.values(early), values, strict=True))
    assert all(np.array_equal(x.value, v) for x, v in zip(early, values, strict=True))
    assert pool.used_bytes == 0


def losses_of(batch, device, pool):
    """A run with an arena and a scratch."""
    model = Tagger(seed=5)
    for parameter in model.parameters():
        parameter.to(device)
    with db.Graph(device, pool=pool) as graph:
        return graph.values(model.losses(graph, batch))


@pytest.mark.parametrize("name", ["arena", "size classes", "buddy"])
def test_the_least_limit_that_holds_a_run_is_enough(device, name):
    """After a smaller run, an arena has one region in which both have no room: a second try."""
    allocator = ALLOCATORS[name]
    pool, _ = below(allocator, device)
    expected = losses_of(sentences([500, 400]), device, pool)
    limit = pool.peak_bytes
    pool, _ = below(allocator, device)
    pool.limit_bytes = limit
    for _ in range(2):
        losses_of(sentences([450, 360]), device, pool)
    assert losses_of(sentences([500, 400]), device, pool) == expected


def test_a_gpu_without_memory_for_arrays_of_cupy(cuda, monkeypatch):
    """What does not come from a pool: gradients, index tables, temporaries of kernels."""
    if not hasattr(cuda, "settings"):
        pytest.skip("the memory of a GPU is not limited for a test")
    from tests.cuda.fake_cupy import memory as device_memory

    allocate, calls, fails = device_memory.Memory.__init__, [0], [NEVER]

    def failing(self, size):
        calls[0] += 1
        if calls[0] in fails[0]:
            self.size, self.device_id, self.ptr = 0, 0, 0
            raise device_memory.OutOfMemoryError(f"allocation {calls[0]} fails")
        allocate(self, size)

    def one(fails_at):
        model = Tagger(seed=5)
        for parameter in model.parameters():
            parameter.to("cuda")
        pool, failures = Pool(upstream=DeviceMemory()), 0
        calls[0], fails[0] = 0, fails_at
        with db.Graph("cuda", pool=pool) as graph:
            step = TrainingAfterValues(graph, model)
            for part in step.parts():
                try:
                    part()
                    continue
                except MemoryError:
                    failures += 1
                fails[0] = NEVER
                part()
        fails[0], count = NEVER, calls[0]  # after the end, where kept values were copied
        assert pool.used_bytes == 0
        step.values["kept in the end"] = [np.asarray(h.value) for h in step.kept]
        step.values["gradients"] = [dense_gradient(p) for p in model.parameters()]
        return step.values, failures, count

    monkeypatch.setattr(device_memory.Memory, "__init__", failing)
    expected, _, count = one(NEVER)
    assert count > 10
    for number in range(1, count + 1):
        found, failures, _ = one(range(number, 1 << 60))
        assert failures == 1 or number == count  # the last copies what is kept: the host takes it
        assert_equal(found, expected)
