"""Kernels that the parts of the check want to launch are compiled before they do."""

import itertools
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import cases, check, prewarm, switches
from benchmarks.workloads.tagger import DynbatchTagger
from dynbatch.compiler.cuda import persistent
from dynbatch.kernels.cuda import elementwise, gated
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import REAL, Kernels
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.benchmarks.gpu.parsing import parsed
from tests.benchmarks.gpu.small import tiny


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


def test_a_case_compiles_what_other_parts_of_the_check_make_of_it(cuda, monkeypatch):
    """Cells in double, with rounded factors, and in each way of each switch."""
    monkeypatch.setattr(prewarm, "SWITCHES", [switches.constant(persistent, "TAIL_ROWS", 0)])
    before = {dtype: set(queue().kernels(dtype).known) for dtype in REAL}
    for step in (*prewarm.STEPS, prewarm.SWITCHED):
        prewarm.train_few(tiny("tagger", hidden=9), step)
        known = {dtype: set(queue().kernels(dtype).known) for dtype in REAL}
        dtype = "float64" if step == "float64" else "float32"
        assert known[dtype] - before[dtype], step
        before = known


def test_nothing_is_compiled_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(prewarm, "_run", lambda command: pytest.fail("no process can do it"))
    assert prewarm.main(["--processes", "2"]) == 2
    assert capsys.readouterr().err.startswith("CUDA is not available")


def test_the_kernels_of_the_cpu_are_compiled_by_one_process(cuda, monkeypatch, capsys):
    """Before fourteen would each do it."""
    done = []
    monkeypatch.setattr(prewarm, "CASES", (tiny("tagger"),))
    monkeypatch.setattr(
        DynbatchTagger, "train", lambda self, batch: done.append((self.device.name, self.precision))
    )
    monkeypatch.setattr(
        prewarm, "_run", lambda command: done.append("a process") or SimpleNamespace(returncode=0)
    )
    assert prewarm.main(["--processes", "2"]) == 0
    assert done[:3] == [("cpu", "float32"), ("cpu", "tf32"), ("cpu", "bfloat16")]
    assert set(done[3:]) == {"a process"}
    assert json.loads(capsys.readouterr().out)["processes"] == len(done) - 3
