"""The tests of `make test`, `make test-cuda` and `make test-slow`: each test is of one suite.

main    what protects users on a CPU, and the contract of each node on the stand-in for a GPU
cuda    what else computes on a GPU or its stand-in: kernels, the simulator, NVRTC, CuPy's names
slow    benchmarks and examples; and what is marked `slow`: whole runs of commands and processes,
        long sweeps over random graphs, comparisons that import transformers, tests of words, and
        other files that take long
"""

from __future__ import annotations

from functools import cache
from pathlib import PurePath

import pytest

SUITES = ("main", "cuda", "slow")
ON_GPU = "tests.cuda.on_gpu"  # the plugin that chooses tests for a card


def wanted_suite(config: pytest.Config) -> str | None:
    """The suite that a command line asks for, main where it names no file and no other choice."""
    if config.getoption("--suite"):
        return str(config.getoption("--suite"))
    is_named = config.args_source is not config.ArgsSource.TESTPATHS
    is_chosen = config.getoption("--all") or config.getoption("--part")
    has_all = is_named or is_chosen or config.pluginmanager.has_plugin(ON_GPU)
    return None if has_all else "main"


def suite_of(item: pytest.Item) -> str:
    """The suite of a test: of its file where that has one, else by its marks and parameters."""
    file = PurePath(item.nodeid.partition("::")[0])
    if suite := suite_of_file(file):
        return suite
    if item.get_closest_marker("slow"):
        return "slow"
    return "cuda" if item.get_closest_marker("cuda") or asks_for_device(item) else "main"


@cache
def suite_of_file(path: PurePath) -> str | None:
    """The suite of all tests of a file or folder, by its path in the repository, or None."""
    if path.is_relative_to("tests/benchmarks") or path.is_relative_to("tests/examples"):
        return "slow"
    if "cuda" in path.parts or path.name == "test_cuda.py":
        return "cuda"
    is_doctest = path.parts[0] == "dynbatch" and path.suffix == ".py"
    return "main" if is_doctest or path == PurePath("tests/nodes/test_contract.py") else None


def may_compute_on_device(item: pytest.Item) -> bool:
    """Whether a test that does is of a suite for it; of the suite main, contracts of nodes are."""
    return suite_of(item) != "main" or asks_for_device(item)


def asks_for_device(item: pytest.Item) -> bool:
    """Whether a test computes on the device that a fixture or a parameter of it names."""
    named = getattr(getattr(item, "callspec", None), "params", {})
    if "device" in named:
        return bool(named["device"] == "cuda")
    return not {"cuda", "cupy"}.isdisjoint(getattr(item, "fixturenames", ()))
