"""The report of a worker, in a run of several processes, on each test."""

from tests import conftest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError

@pytest.fixture
def broken_afterwards():
    yield
    raise ValueError

def test_passes(): pass
def test_fails(): assert False
def test_is_skipped(): pytest.skip()
def test_without_a_beginning(broken): pass
def test_without_an_end(broken_afterwards): pass
"""


class Worker:
    """Lets a run take itself for one of xdist's workers."""

    pytest_runtest_protocol = staticmethod(conftest.pytest_runtest_protocol)

    def pytest_configure(self, config):
        config.workerinput = {}


def reported(pytester, *options):
    pytester.makepyfile(test_some=TESTS)
    run = pytester.inline_run("-p", "no:cacheprovider", *options, plugins=[Worker()])
    reports = run.getreports("pytest_runtest_logreport")
    return [
        (report.nodeid.removeprefix("test_some.py::test_"), report.when, report.outcome)
        for report in reports
    ]


def test_each_test_is_reported_once_and_setup_and_teardown_where_they_fail(pytester):
    assert reported(pytester) == [
        ("passes", "call", "passed"),
        ("fails", "call", "failed"),
        ("is_skipped", "call", "skipped"),
        ("without_a_beginning", "setup", "failed"),
        ("without_an_end", "call", "passed"),
        ("without_an_end", "teardown", "failed"),
    ]


def test_all_phases_are_reported_where_their_durations_are_asked_for(pytester):
    phases = [when for _, when, _ in reported(pytester, "--durations=1")]
    assert phases == ["setup", "call", "teardown"] * 3 + ["setup", "teardown"] + [
        "setup", "call", "teardown"
    ]  # fmt: skip
