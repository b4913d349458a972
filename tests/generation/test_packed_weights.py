"""Generation in bfloat16 packs weights once, and no number knows of it."""

from functools import partial

import numpy as np
import pytest

import dynbatch as db
from dynbatch import optim
from dynbatch.backend import CPU
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.kernels import packed
from dynbatch.kernels.c.runtime.arrays import address
from dynbatch.kernels.c.runtime.library import reason, reference_only
from dynbatch.kernels.packed import PackedWeights, panel_words
from dynbatch.memory.pool import pool_of
from tests.generation.companies import numbers, prompts
from tests.generation.tiny_models import VOCAB, tiny

pytestmark = pytest.mark.skipif(bool(reason()), reason="weights are packed for C")

CONFIG = GenerationConfig(max_new_tokens=9)


@pytest.fixture
def packs(monkeypatch):
    """The addresses of the weights that are packed, one after the other."""
    found, pack = [], packed._pack

    def noted(b, *rest):
        found.append(address(b))
        pack(b, *rest)

    monkeypatch.setattr(packed, "_pack", noted)
    return found


def written(model, given, steps=None, change=None, matmul="bfloat16"):
    """The text that an engine writes for prompts side by side; a change is made amid the steps."""
    with Engine(model, CONFIG, matmul=matmul) as engine:
        requests = [engine.add(prompt) for prompt in given]
        count = 0
        while not engine.is_idle:
            engine.step()
            count += 1
            if count == steps:
                change()
        return numbers([engine.results(each) for each in requests])


def unpacked(monkeypatch, *args):
    with monkeypatch.context() as patch:
        patch.setattr(PackedWeights, "panels_of", lambda *unused: None)
        return written(*args)


@pytest.mark.parametrize("name", ["gpt2", "t5", "lstm", "seq2seq"])
def test_a_sentence_has_the_same_bits_packed_or_not_alone_and_in_company(name, monkeypatch, packs):
    model, given = tiny(name).eval(), prompts(6)
    together = written(model, given)
    assert packs
    assert together == unpacked(monkeypatch, model, given)
    assert together == [one for prompt in given for one in written(model, [prompt])]


@pytest.mark.exhaustive
def test_a_sentence_has_the_same_bits_in_200_companies():
    model, rng = tiny("gpt2").eval(), np.random.default_rng(0)
    prompt = rng.integers(0, VOCAB, 5)
    (alone,) = written(model, [prompt])
    for count in range(200):
        others = [rng.integers(0, VOCAB, n) for n in rng.integers(1, 12, count % 40)]
        place = int(rng.integers(len(others) + 1))
        found = written(model, [*others[:place], prompt, *others[place:]])
        assert found[place] == alone, count


def test_each_weight_is_packed_once_and_given_back(packs):
    model = tiny("gpt2").eval()
    used = pool_of(CPU).used_bytes
    with Engine(model, CONFIG, matmul="bfloat16") as engine:
        for prompt in prompts(3):
            engine.add(prompt)
        bytes_of_steps = []
        while not engine.is_idle:
            bytes_of_steps.append(engine.memory_use().weights)
            engine.step()
        bytes_of_steps.append(engine.memory_use().weights)
    weights = [p.value for p in model.parameters() if p.value.ndim == 2]
    most = 4 * sum([max(panel_words(x), panel_words(x.T)) for x in weights])
    assert packs and len(packs) == len(set(packs))
    assert bytes_of_steps[0] == bytes_of_steps[-1] == 0
    assert 0 < max(bytes_of_steps) <= most
    assert pool_of(CPU).used_bytes == used


@pytest.mark.parametrize("matmul", ["float32", "tf32"])
def test_only_bfloat16_is_packed(matmul, packs):
    assert written(tiny("gpt2").eval(), prompts(2), matmul=matmul) and not packs


def test_numpy_packs_nothing(packs):
    with reference_only():
        assert written(tiny("gpt2").eval(), prompts(2)) and not packs


def scaled(parameter):
    parameter.assign(parameter.value * np.float32(-0.5))


def replaced(parameter):
    parameter.value = parameter.value * np.float32(-0.5)


def stepped(parameter):
    parameter.grad = parameter.value.copy()
    optim.SGD([parameter], lr=1.5).step()


@pytest.mark.parametrize("change", [scaled, replaced, stepped])
def test_weights_that_are_changed_between_two_steps_are_packed_anew(change, monkeypatch, packs):
    given, found = prompts(3), []
    plain = written(tiny("gpt2").eval(), given)
    once = len(packs)
    for run in (written, partial(unpacked, monkeypatch)):
        model = tiny("gpt2").eval()
        weights = [p for p in model.parameters() if p.value.ndim == 2]
        found.append(run(model, given, 6, lambda some=weights: [change(p) for p in some]))
    assert found[0] == found[1] != plain
    assert len(packs) == 3 * once


def test_what_is_written_to_a_copy_of_a_file_stays(tmp_path, packs):
    model = tiny("gpt2").eval()
    weight = next(parameter for parameter in model.parameters() if parameter.ndim == 2)
    np.save(tmp_path / "weight.npy", weight.value)
    weight.value = np.load(tmp_path / "weight.npy", mmap_mode="c")
    weight.value[:] *= 2
    expected = weight.numpy()
    written(model, prompts(1))
    assert address(weight.value) in packs
    np.testing.assert_array_equal(weight.value, expected)


def test_an_optimizer_of_another_model_drops_nothing(packs):
    model, other = tiny("gpt2").eval(), db.Parameter(np.ones((4, 3), np.float32))
    plain = written(model, prompts(2))
    once = len(packs)
    assert written(model, prompts(2), 6, lambda: stepped(other)) == plain
    assert len(packs) == 2 * once
