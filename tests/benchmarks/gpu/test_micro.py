"""Launches, products and attention alone."""

import functools
import json

from benchmarks.gpu import micro
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.benchmarks.gpu.small import last


def test_what_nobody_can_reckon_is_measured(cuda, monkeypatch):
    shapes = ((2, 5, 2, 16, True), (1, 3, 1, 8, False))
    for name, value in (("ROUNDS", 1), ("PRODUCT", (3, 4, 5)), ("SHAPES", shapes)):
        monkeypatch.setattr(micro, name, value)
    for work in (micro.launch, micro.product, micro.attention):
        monkeypatch.setattr(micro, work.__name__, functools.partial(work, times=2))
    *before, found = [json.loads(json.dumps(state)) for state in micro.measure()]
    assert [len(state) for state in before] == list(range(1, len(found)))
    assert not [part for part in found.values() if "failed" in part]
    assert found["launch"]["queue_us"] > 0
    assert found["product"].keys() == {"shape", "float32", "tf32", "bfloat16"}
    assert [found[f"attention {k}"]["shape"]["is_causal"] for k in (0, 1)] == [True, False]
    rates = [one for k in (0, 1) for one in found[f"attention {k}"]["tflops"].values()]
    assert len(rates) == 6 and all(one["forward"] > 0 < one["backward"] for one in rates)
    assert {"dot_attention", "dot_attention_mma"} <= {
        name for name in queue().kernels("float32").launches if name.startswith("dot_attention")
    }


def test_a_measurement_that_fails_stops_no_other(cuda, monkeypatch):
    monkeypatch.setattr(micro, "ROUNDS", 1)
    monkeypatch.setattr(micro, "SHAPES", ())
    monkeypatch.setattr(micro, "launch", lambda: {"queue_us": 1.0})
    monkeypatch.setattr(micro, "product", lambda: 1 / 0)
    assert last(micro.measure()) == {
        "launch": {"queue_us": 1.0},
        "product": {"failed": "ZeroDivisionError: division by zero"},
    }
