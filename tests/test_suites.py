"""Each test is of one suite, and a run that names no file is of one."""

from types import SimpleNamespace

import pytest

from tests.suites import ON_GPU, may_compute_on_device, suite_of, wanted_suite


def item(nodeid, *marks, fixtures=(), **parameters):
    return SimpleNamespace(
        nodeid=nodeid,
        callspec=SimpleNamespace(params=parameters),
        fixturenames=fixtures,
        get_closest_marker=lambda name: name if name in marks else None,
    )


@pytest.mark.parametrize(
    ("test", "suite"),
    [
        (item("tests/nodes/test_unary.py::test_a"), "main"),
        (item("dynbatch/nodes/linear.py::dynbatch.nodes.linear"), "main"),
        (item("tests/nodes/test_contract.py::test_a[exp]", fixtures=["cuda"]), "main"),
        (item("tests/nodes/test_unary.py::test_a", fixtures=["cuda"]), "cuda"),
        (item("tests/nodes/test_unary.py::test_a[cuda]", device="cuda"), "cuda"),
        (item("tests/nodes/test_unary.py::test_a[cpu]", device="cpu"), "main"),
        (item("tests/test_several_gpus.py::test_a", "cuda"), "cuda"),
        (item("tests/kernels/cuda/test_blas.py::test_a"), "cuda"),
        (item("tests/memory/test_cuda.py::test_a"), "cuda"),
        (item("tests/benchmarks/test_run.py::test_a", fixtures=["cuda"]), "slow"),
        (item("tests/examples/test_scan.py::test_a"), "slow"),
        (item("tests/parallel/test_launcher.py::test_a", "slow"), "slow"),
    ],
    ids=lambda value: value.nodeid if isinstance(value, SimpleNamespace) else value,
)
def test_a_test_is_of_one_suite(test, suite):
    assert suite_of(test) == suite


def test_a_test_of_the_suite_main_is_given_no_device_while_it_runs():
    contract = item("tests/nodes/test_contract.py::test_a[exp]", fixtures=["cuda"])
    assert may_compute_on_device(contract)
    assert may_compute_on_device(item("tests/padding/test_device.py::test_a", "cuda"))
    assert not may_compute_on_device(item("tests/padding/test_device.py::test_a"))


def config(source, plugin=None, **options):
    return SimpleNamespace(
        getoption=lambda name: options.get(name.removeprefix("--")),
        args_source=source,
        ArgsSource=pytest.Config.ArgsSource,
        pluginmanager=SimpleNamespace(has_plugin=lambda name: name == plugin),
    )


def test_a_run_that_names_nothing_is_of_the_suite_main():
    nothing, files = pytest.Config.ArgsSource.TESTPATHS, pytest.Config.ArgsSource.ARGS
    assert wanted_suite(config(nothing)) == "main"
    assert wanted_suite(config(nothing, suite="cuda")) == "cuda"
    assert wanted_suite(config(files, suite="cuda")) == "cuda"
    for whole in (
        config(files),
        config(nothing, all=True),
        config(nothing, part="1/6"),
        config(nothing, ON_GPU),
    ):
        assert wanted_suite(whole) is None
