"""Generation on a GPU: the CPU's tokens, and one small array a step comes to the host."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.backend import device_of
from dynbatch.errors import NumericError
from dynbatch.generation import engine as engine_module
from dynbatch.generation.engine import Engine
from dynbatch.kernels.cuda.runtime import replays
from dynbatch.kernels.cuda.runtime.queue import Queue, queue
from dynbatch.kernels.cuda.runtime.replays import Replays
from tests.cuda import fake_cupy
from tests.cuda.fake_cupy.memory import MemoryPointer
from tests.generation.tiny_models import VOCAB, tiny
from tests.marks import quick

SETTINGS = {
    "greedy": {"eos_token_id": (5,)},
    "samples": {
        "do_sample": True, "temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.01,
        "num_return_sequences": 2, "seed": 3,
    },
    "edits": {
        "repetition_penalty": 1.3, "frequency_penalty": 0.2, "no_repeat_ngram_size": 2,
        "suppress_tokens": (3,), "allowed_tokens": tuple(range(40)),
    },
    "beams": {"num_beams": 3, "num_return_sequences": 2, "repetition_penalty": 1.2},
}  # fmt: skip


@pytest.fixture
def downloads(cuda, monkeypatch):
    """The bytes of each copy to the host."""
    if cuda is not fake_cupy:
        pytest.skip("the stand-in's copies are counted")
    found = []
    get, copy = cuda.ndarray.get, MemoryPointer.copy_to_host_async
    monkeypatch.setattr(
        cuda.ndarray, "get", lambda self, *a: found.append(self.nbytes) or get(self, *a)
    )
    monkeypatch.setattr(
        MemoryPointer, "copy_to_host_async",
        lambda self, mem, size, *a: found.append(size) or copy(self, mem, size, *a),
    )  # fmt: skip
    return found


def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, n) for n in (40, 1, 33)]


def results(model, settings, count=5):
    engine = Engine(model, step_tokens=50)
    added = [engine.add(prompt, max_new_tokens=count, **settings) for prompt in prompts()]
    list(engine.run())
    assert engine.caches.lent_bytes == 0
    return [[one.tokens for one in engine.results(k)] for k in added]


@pytest.mark.parametrize("way", SETTINGS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "lstm", "alibi", "window"])
def test_a_gpu_gives_the_tokens_of_the_cpu(name, way, cuda):
    model, settings = tiny(name), SETTINGS[way]
    expected = results(model, settings)
    assert results(model.to("cuda"), settings) == expected


class Cubed(db.Operation):
    """A user's type, which computes at once: it reads what was computed before it."""

    rowwise = True

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        if batch.xp is np:
            np.power(x.values, 3, out=y.values)
        else:
            y.values.set(x.values.get() ** 3)


class CubedByAKernel(Cubed):
    """A user's type that launches a kernel, in its turn."""

    rowwise = names_kernels = True
    kernel = db.CudaKernel(
        'extern "C" __global__ void cube(const REAL* x, REAL* y, int n) {'
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;"
        "    if (i < n) y[i] = x[i] * x[i] * x[i]; }"
    )

    @classmethod
    def forward_batch(cls, batch, y, x):
        if batch.xp is np:
            super().forward_batch(batch, y, x)
        else:
            count = x.flat.size
            batch.launch(cls.kernel, -(-count // 64), 64, (x.flat, y.flat, count))


class Cubes(models.Module):
    """A language model with a user's type between functions of ours."""

    def __init__(self, kind):
        self.kind = kind
        rng = np.random.default_rng(2)
        self.embedding = models.Embedding(VOCAB, 12, rng=rng)
        self.lstm = models.LSTM(12, 16, rng=rng)
        self.output = models.Linear(16, VOCAB, rng=rng)

    def __call__(self, graph, ids):
        return self.output(F.tanh(self.kind(4 * self.lstm(self.embedding(graph, ids)))))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Cubed, "a part of it was started before the rest was queued"),
        (CubedByAKernel, "cube, a kernel of the user's own"),
    ],
)
@pytest.mark.parametrize("rows", [0, 64])
def test_a_user_s_type_reads_what_the_same_step_has_computed(kind, why, rows, cuda, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", rows)
    model = Cubes(kind)
    for parameter in model.parameters():
        parameter.assign(3 * parameter.numpy())
    expected = results(model, SETTINGS["greedy"], count=9)
    assert len({token for ((*tokens,),) in expected for token in tokens}) > 6
    queue().replays.refused.clear()
    assert results(model.to("cuda"), SETTINGS["greedy"], count=9) == expected
    assert [*queue().replays.refused] == [why] * (rows > 0)


@pytest.mark.parametrize("way", ["greedy", "samples", "beams"])
def test_on_a_gpu_results_without_a_token_and_nan_end_as_on_the_cpu(way, cuda):
    def ends(model):
        with Engine(model) as engine:
            settings = {**SETTINGS[way], "max_new_tokens": 9}
            added = [engine.add([3, 4], process=hook, **settings, **each) for each, hook in cases]
            events = list(engine.run())
            reasons = [[e.reason for e in events if e.request == k and e.reason] for k in added]
            errors = [type(e.error) for e in events if e.error is not None]
            kept = [k for k, reason in zip(added, reasons, strict=True) if "failed" not in reason]
            tokens = [[one.tokens for one in engine.results(k)] for k in kept]
            assert engine.caches.lent_bytes == 0
        return reasons, errors, tokens

    def put(value, place):
        def hook(logits, ids):
            row = np.array(logits if isinstance(logits, np.ndarray) else logits.get())
            row[place] = value
            return device_of(logits).xp.asarray(row)

        return hook

    few = {"allowed_tokens": (1, 2, 6), "no_repeat_ngram_size": 1}
    cases = [
        ({}, None), (few, None), ({"suppress_tokens": tuple(range(VOCAB))}, None),
        ({}, put(np.nan, slice(None))), ({}, put(np.nan, 7)), ({}, put(np.inf, 7)),
        ({}, put(-np.inf, slice(None))), (few, put(-np.inf, 3)),
    ]  # fmt: skip
    model = tiny("gpt2")
    expected = ends(model)
    count = SETTINGS[way].get("num_return_sequences", 1)
    assert expected[0][1] == ["no token"] * count and expected[1] == [NumericError] * 3
    assert ends(model.to("cuda")) == expected
    for parameter in model.parameters():
        parameter.assign(np.full(parameter.shape, np.nan))
    cases = [({}, None), (few, None), ({"forced_bos_token_id": 3}, None)]
    assert ends(model)[:2] == ([["failed"]] * 3, [NumericError] * 3)


@pytest.mark.parametrize("way", SETTINGS)
def test_a_step_brings_one_small_array_to_the_host(way, downloads):
    model = tiny("gpt2").to("cuda")
    engine = Engine(model)
    for prompt in prompts():
        engine.add(prompt, max_new_tokens=5, **SETTINGS[way])
    downloads.clear()
    rows = {"samples": 6, "beams": 9}.get(way, 3)
    while not engine.is_idle:
        engine.step()
        # Of a token its id and log-probability; of beams those of two candidates each, and scores.
        # Where logits are changed, the largest.
        of_row = {"beams": 76, "edits": 12}.get(way, 8)
        assert len(downloads) == 1 and downloads[0] <= rows * of_row
        downloads.clear()


# Launches of a greedy step, where each sentence has one new row: two layers and what chooses. In
# llama's one norm shares part of its memory with a sum's operand, so that it is not one with it.
LAUNCHES = {"gpt2": 33, "llama": 35, "seq2seq": 27, "t5": 41, "lstm": 23, "marian": 45}


def steps_of(name, count, settings):
    """Launches and uploads of each step in which all sentences have one new row."""
    model = tiny(name).to("cuda")
    engine = Engine(model, step_tokens=4096)  # the prompts in one step
    for k in range(count):
        engine.add(np.arange(3 + k) % 3 + 3, max_new_tokens=9, **settings)
    engine.step()  # which reads the prompts
    engine.step()  # and which prepares the step
    found = []
    while not engine.is_idle:
        before = queue().launches, queue().uploads
        events = engine.step()
        if any([event.reason for event in events]):  # then fewer go on, with another step
            break
        found.append((queue().launches - before[0], queue().uploads - before[1]))
    engine.close()  # before the device ends: some requests go on
    assert len(found) > 2
    return found


@pytest.mark.parametrize("name", quick(["gpt2", "t5", "lstm"], LAUNCHES))
def test_a_step_is_one_upload_and_as_many_launches_for_any_number_of_prompts(name, cuda):
    few, many = [steps_of(name, count, {}) for count in (2, 7)]
    assert {*few, *many} == {(LAUNCHES[name], 1)}


@pytest.mark.parametrize("name", quick(["gpt2"], ["gpt2", "llama", "t5"]))
def test_samples_and_beams_are_one_upload_too(name, cuda):
    samples = [steps_of(name, count, SETTINGS["samples"]) for count in (2, 5)]
    assert len({step for steps in samples for step in steps}) == 1
    launches, uploads = samples[0][0]
    assert launches <= LAUNCHES[name] + 3 and uploads == 1  # what cuts and copies logits
    # Beams that go on in two ways copy their last page, each in a launch.
    beams = steps_of(name, 2, {"num_beams": 3})
    assert {uploads for _, uploads in beams} == {1}


@pytest.mark.parametrize("name", quick(["gpt2", "lstm"], LAUNCHES))
@pytest.mark.parametrize("count", quick([2, 16], [2, 16, 64]))
def test_a_token_is_one_replay_for_any_number_of_prompts(name, count, cuda, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    first, *others = steps_of(name, count, {})
    assert first in ((LAUNCHES[name], 1), (1, 1))  # kernels that have not come before, or have
    assert {*others} == {(1, 1)}


@pytest.mark.parametrize("way", quick(["greedy", "samples"], SETTINGS))
@pytest.mark.parametrize(
    "name",
    quick(
        ["gpt2", "lstm"], ["gpt2", "llama", "t5", "lstm", "alibi", "window", "marian", "seq2seq"]
    ),
)
def test_replayed_steps_give_the_tokens_of_the_cpu(name, way, cuda, monkeypatch):
    model, settings = tiny(name), SETTINGS[way]
    expected = results(model, settings, 12)
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    before = queue().replays.replayed
    assert results(model.to("cuda"), settings, 12) == expected
    assert queue().replays.replayed > before


@pytest.mark.parametrize("rows", [0, 64])
def test_of_a_token_launches_that_depend_on_prompts_alone_are_found_out(rows, cuda, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", rows)
    queued, launch = [], Queue.launch
    monkeypatch.setattr(Queue, "launch", lambda self, *a: queued.append(a[1]) or launch(self, *a))
    with Engine(tiny("gpt2").to("cuda")) as engine:
        for _ in range(3):
            engine.add([3, 4], max_new_tokens=9)
        for _ in range(4):
            engine.step()
        queued.clear()
        engine.step()
    layer = ["write_rows", "write_rows", "dot_attention_of_pages"]
    of_last_rows, chosen = ["gather_rows"], ["copy", "draw_rows", "softmax_loss"]
    assert queued == ["gather_rows", "gather_rows", *layer, *layer, *of_last_rows, *chosen]


def test_as_prompts_end_and_pages_are_added_the_graph_stays(cuda, monkeypatch):
    """It has room for eight sentences, and so has the plan."""
    monkeypatch.setattr(replays, "MOST_ROWS", 64)
    counts = Replays(cuda, queue()._staging)
    monkeypatch.setattr(queue(), "replays", counts)
    monkeypatch.setattr(queue(), "repeating", counts.repeating)
    found, events = [], []
    with Engine(tiny("gpt2").to("cuda")) as engine:
        for k in range(8):  # pages have 32 rows
            engine.add(np.full(25 + k, 4), max_new_tokens=min(6 + 3 * k, 15))
        while not engine.is_idle:
            before = counts.replayed
            events += engine.step()
            found.append(counts.replayed - before)
    assert len([event for event in events if event.reason]) == 8
    prompts, planned, new = 1, 1, 1
    assert len(found) == 15 and found.count(0) == prompts + planned + new
    assert found[3:] == [1] * 12
    assert (counts.new, counts.captured, counts.refused) == (1, 1, {})


def test_a_step_of_more_rows_says_why_it_is_not_replayed(cuda, monkeypatch):
    monkeypatch.setattr(replays, "MOST_ROWS", 2)
    queue().replays.refused.clear()
    assert {*steps_of("gpt2", 3, {})} == {(LAUNCHES["gpt2"], 1)}
    engine = Engine(tiny("gpt2").to("cuda"))
    assert engine.replays is queue().replays and Engine(tiny("gpt2")).replays is None
    (why,) = engine.replays.refused
    assert (
        why in str(engine.replays)
        and why == "LinearMap #0, in a batch of 3: a product of 3 rows, which cuBLAS makes"
    )


def test_an_error_of_choosing_leaves_nothing_in_the_queue(cuda, monkeypatch):
    model, config = tiny("gpt2").to("cuda"), {"max_new_tokens": 6}
    expected = db.generate(model, [[1, 2, 3], [4]], **config)
    engine, calls, choose = Engine(model), [], engine_module.choose

    def failing(*args):
        calls.append(args)
        if len(calls) == 4:
            raise MemoryError("no room")
        return choose(*args)

    monkeypatch.setattr(engine_module, "choose", failing)
    numbers = [engine.add(prompt, **config) for prompt in ([1, 2, 3], [4])]
    for _ in engine.run():
        assert not queue().waiting()
    assert len(calls) > 4  # and each is read again by itself
    found = [engine.results(number)[0].tokens for number in numbers]
    assert found == [one.tokens for (one,) in expected]


def test_pages_lie_on_the_gpu(cuda):
    pages = Engine(tiny("gpt2").to("cuda")).caches.grown[0]
    page = pages.take()
    assert type(page.array) is cuda.ndarray
    pages.leave([page])


def test_a_hook_is_given_an_array_of_the_gpu(cuda):
    seen = []

    def hook(logits, tokens):
        seen.append(type(logits))
        if tokens.size == 4:
            return np.zeros(VOCAB)
        return logits

    model = tiny("gpt2")
    (wanted,) = db.generate(model, [[1, 2]], max_new_tokens=2)
    engine = Engine(model.to("cuda"))
    number = engine.add([1, 2], process=hook, max_new_tokens=5)
    other = engine.add([1, 2], max_new_tokens=2)
    events = list(engine.run())
    assert set(seen) == {cuda.ndarray}
    (failed,) = [event for event in events if event.error]
    assert failed.request == number and "the hook returned float64" in str(failed.error)
    assert engine.results(other)[0].tokens == wanted[0].tokens
