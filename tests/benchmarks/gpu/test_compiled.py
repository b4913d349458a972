"""The modules that a program's first step compiles, and the table of them."""

import json

import pytest

from benchmarks.gpu import compiled, host
from benchmarks.gpu.compiled import Module


@pytest.mark.parametrize("workload", ["tagger"])
def test_a_step_compiles_each_kernel_that_it_starts_by_itself_and_no_other(workload):
    modules = compiled.first_step_of(host.ROOT, workload, 2)
    assert [module.kernels for module in modules] == [module.launched for module in modules]
    names = [kernel for module in modules for kernel in module.kernels]
    assert len(names) == len(set(names)) == len(modules) > 10
    assert names[-1].startswith("adam_") and modules[-1].flush > modules[0].flush == 0
    assert all(module.options == ["-DREAL=float", "--minimal"] for module in modules)


def test_work_is_begun_in_order_by_the_first_processor_that_is_free():
    seconds = [2, 1, 3, 1]
    assert [compiled.seconds_on(count, seconds) for count in (1, 2, 3, 9)] == [7, 4, 3, 3]
    assert compiled.seconds_on(2, []) == 0


def test_the_table_has_both_checkouts_and_adds_up_each_flush(monkeypatch, tmp_path, capsys):
    family = Module("family", ("-DREAL=float",), ("a", "b", "c"), ("a", "b"), 0)
    update = Module("update", ("-DREAL=float",), ("adam",), ("adam",), 1)
    alone = [family._replace(text=name, kernels=(name,), launched=(name,)) for name in "ab"]
    seconds = {"family": 9.0, "a": 3.0, "b": 2.0, "update": 1.0}
    steps = {host.ROOT: [*alone, update], tmp_path: [family, update]}
    monkeypatch.setattr(compiled, "first_step_of", lambda checkout, *_: steps[checkout])
    monkeypatch.setattr(compiled, "compile_one", lambda module, _: seconds[module.text])
    monkeypatch.setattr(compiled.nvrtc, "missing", lambda _: None)
    arguments = ["tagger", "--beside", str(tmp_path), "--json", "--rounds", "1"]
    assert compiled.main(arguments) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)["tagger"]
    counted = ("kernels", "modules", "launched", "NVRTC s", "longest", "on 2", "on 16")
    assert [found[str(tmp_path)][each] for each in counted] == [4, 2, 3, 10, 9, 10, 10]
    assert [found["this checkout"][each] for each in counted] == [3, 3, 3, 6, 3, 4, 4]
    assert len(shown.err.splitlines()) == 3
