"""Settings of the whole test suite.

Tests marked `exhaustive` are products and counts beyond what most changes need: all orders in which
threads run, every architecture, thousands of random graphs. They are left out unless asked for, and
so are products of the parameters of the others, of which each value is tried at least once; their
`check_gradient` takes differences of few elements, and `check_batching` and `check_device` run each
mini-batch once, not both with values read before backward and without. These others are of three
suites (`tests/suites.py`), of which one runs where no file is named:

    pytest                 the suite main, as `make test`
    pytest --suite cuda    another suite: `make test-cuda`, `make test-slow`
    pytest PATH ...        of each file that is named all suites
    pytest --changed       the files nearest to what differs from main (`tests/changed.py`)
    pytest --all           all suites, and what is exhaustive
    pytest --part 2/6      a sixth of what is exhaustive alone: CI takes a 36th for each commit
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:  # each processor has a worker: PyTorch needs no more
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from _pytest.runner import runtestprotocol

import dynbatch as db
import dynbatch.pictures  # else pytest puts a file of it, imported for doctests, over its function
from dynbatch.batcher.planning import recompute_search
from dynbatch.errors import DynbatchError
from dynbatch.kernels import segment
from dynbatch.testing import batching, check_gradient
from dynbatch.testing import device as check_device
from tests.changed import Changed
from tests.cuda import devices
from tests.marks import Case, covering, covering_cases, dealt, exhaustive, is_exhaustive, is_named
from tests.poison import poisoned_memory
from tests.suites import (
    ON_GPU,
    SUITES,
    may_compute_on_device,
    suite_of,
    suite_of_file,
    wanted_suite,
)

try:
    from tests.random_examples import settings
except ImportError:  # then only the files that need hypothesis cannot run
    pass

PACKAGE = Path(db.__file__).parent
FEW_ELEMENTS = 16
"""Elements of an array whose gradient is compared with differences; with --all the usual 100."""


def pytest_configure(config: pytest.Config) -> None:
    """Take Ctrl-C and a hang-up as in a terminal, also where nohup and & have them ignored.

    Doctests of `dynbatch.torch` are collected where PyTorch is installed.
    """
    DynbatchError.__init__ = _checked  # type: ignore[method-assign]
    if find_spec("torch") is None:
        bridge = config.rootpath / "dynbatch" / "torch"
        config.option.ignore = [*(config.option.ignore or []), str(bridge)]
    config.pluginmanager.register(Doctests())
    if (base := config.getoption("--changed")) is not None:
        config.pluginmanager.register(Changed(config, base))
    config.option.suite = wanted_suite(config)  # and so that of xdist's workers
    if path := config.getoption("--durations-table"):
        from tests.durations import Durations

        config.pluginmanager.register(Durations(path, config.getoption("--suite") or "others"))
    if config.getoption("--all") and find_spec("hypothesis"):
        settings.load_profile("all")
    if not _tries_all(config):
        check_gradient.__kwdefaults__["most"] = FEW_ELEMENTS
        for check in (batching._check, check_device._check):
            check.__kwdefaults__["twice"] = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _tries_all(config: pytest.Config) -> bool:
    """Whether what is exhaustive is run, or a part of it."""
    return bool(config.getoption("--all") or config.getoption("--part"))


def _checked(error: DynbatchError, *arguments: Any) -> None:
    """Hold each error that any test provokes to one fix and one line of the user's.

    Raises:
        AssertionError: the message has two, as where that of another error stands in it.
    """
    super(DynbatchError, error).__init__(*arguments)
    message = str(arguments[0]) if arguments else ""
    for piece in ("\n  fix:", "\n  made at "):
        assert message.count(piece) <= 1, message


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the exhaustive tests too")
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts of those alone")
    parser.addoption("--changed", nargs="?", const="", metavar="BASE", help="run what is near")
    parser.addoption("--durations-table", metavar="FILE", type=Path, help="say what takes long")
    parser.addoption("--suite", choices=SUITES, help="run one suite; of a file that is named, all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files of other suites alone."""
    if config.getoption("--suite") and collection_path.is_relative_to(config.rootpath):
        file = collection_path.relative_to(config.rootpath)
        return suite_of_file(file) not in (None, config.getoption("--suite")) or None
    return None


class Doctests:
    """Opens no module without doctests where all are run: four of five have none.

    It is no part of this file, whose hooks are asked about files of tests alone.
    """

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        is_module = collection_path.suffix == ".py" and PACKAGE in collection_path.parents
        if not is_module or any(collection_path.name in one for one in config.args):
            return None
        return b">>> " not in collection_path.read_bytes() or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while thousands of tests are made, all of which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Leave doctests to the package: files of tests have none, and looking for them takes long."""
    found = yield
    return [file for file in found if type(file) is pytest.Module]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, Any, None]:
    """Make no test of the sets of parameters that this run leaves out in any case.

    Making one takes as long as running a short one. A set stays that the command line names, and
    where no other does: pytest would take the test for one without parameters.
    """
    yield
    config, test = metafunc.config, metafunc.definition
    if _tries_all(config) or config.pluginmanager.has_plugin(ON_GPU):
        return
    all_are = test.get_closest_marker("exhaustive")
    plain = [call for call in metafunc._calls if not (all_are or is_exhaustive(call.marks))]
    marks = list(test.iter_markers("parametrize"))
    cases = [Case(f"{test.nodeid}[{call.id}]", call.params, marks) for call in plain]
    chosen = set(covering_cases(cases))
    chosen |= {case.node_id for case in cases if is_named(case.node_id, config.args)}
    kept = [call for call, case in zip(plain, cases, strict=True) if case.node_id in chosen]
    metafunc._calls[:] = kept or metafunc._calls[:1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or config.pluginmanager.has_plugin(ON_GPU):
        return
    chosen = [item for item in items if item.get_closest_marker("exhaustive") is None]
    if part := config.getoption("--part"):
        number, count = map(int, part.split("/"))
        quick = covering(chosen)
        chosen = dealt([item for item in items if item.nodeid not in quick], number, count)
    if suite := config.getoption("--suite"):
        chosen = [item for item in chosen if suite_of(item) == suite]
    kept = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tell xdist's first process of each test what it came to, and no more.

    Six messages a test, of which five say that it begins, ends or is set up, cost as much
    as a short test itself.
    """
    if not hasattr(item.config, "workerinput") or item.config.option.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave thousands of tests out of every later garbage collection."""
    gc.freeze()


@pytest.fixture
def young_heap() -> None:
    """Garbage is looked for in what the test makes, not in all that those before it left."""
    gc.freeze()


@pytest.fixture
def dead_memory_is_nan() -> Iterator[None]:
    """Whatever of an arena is not alive holds NaN during the test."""
    with poisoned_memory():
        yield


@pytest.fixture(params=[7, exhaustive(segment.BLOCK)], ids=["small blocks", "whole"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy kernels that work in blocks make several of a few numbers, and then one of all."""
    monkeypatch.setattr(segment, "BLOCK", request.param)


@pytest.fixture
def short_search(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least is looked for by few plans where any low limit does; with --all as for users."""
    if not _tries_all(pytestconfig):
        monkeypatch.setattr(recompute_search, "STEPS_PLANNED", 400)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """After the test, dynbatch has as many threads as before."""
    before = db.num_threads()
    yield
    db.set_num_threads(before)


@pytest.fixture
def one_thread(same_threads: None) -> None:
    """During the test, dynbatch has one thread."""
    db.set_num_threads(1)


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module that dynbatch takes for CuPy: a GPU's where there is one, else the simulator."""
    assert may_compute_on_device(request.node), "mark a test that asks while it runs as `cuda`"
    with devices.device("gpu" if devices.has_gpu() else "shuffled") as module:
        yield module


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """The name of each device in turn."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return str(request.param)
