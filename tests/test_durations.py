"""The table of what the tests take has each test, what it set up and what it compiled, once."""

import json

import pytest

from dynbatch.kernels.c.runtime import library
from tests import durations

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from dynbatch.kernels.c.runtime import library

def busy(rounds=400_000):
    for _ in range(rounds):
        pass

busy()

@pytest.fixture
def slow():
    busy(800_000)

def test_a(slow): library.build([])
def test_b(): pass
"""


@pytest.fixture
def measured(pytester, monkeypatch, tmp_path):
    """Measures a run of two tests, and writes the table in a file that has another."""
    monkeypatch.setattr(durations, "LITTLE", 0.0)
    monkeypatch.setattr(library, "build", lambda units: sum(range(2_000_000)))
    path = tmp_path / "table.json"
    path.write_text('{"slow": {"clock": 7}}')
    pytester.makepyfile(test_some=TESTS)
    plugin = durations.Durations(path, "main")
    assert pytester.inline_run("-p", "no:cacheprovider", "-q", plugins=[plugin]).ret == 0
    return plugin, path


def test_files_fixtures_and_compilers_have_their_seconds(measured):
    _, path = measured
    tables = json.loads(path.read_text())
    assert tables["slow"] == {"clock": 7}
    table = tables["main"]
    (tests, seconds, collection) = table["files"]["test_some.py"]
    assert tests == 2 and collection > 0
    assert seconds >= table["fixtures"]["slow"] > 0 < table["compile"]["C"]
    assert table["parts"].keys() == {"start", "collection", "tests"}
    assert '"test_some.py": [2, ' in path.read_text()


def test_what_workers_send_is_added(measured):
    plugin, path = measured
    before = json.loads(path.read_text())["main"]
    plugin.add({"count": {"test_some.py": 3}, "tests": {"test_some.py": 10.0}})
    plugin.write()
    after = json.loads(path.read_text())["main"]
    assert after["files"]["test_some.py"][0] == 5
    assert after["parts"]["tests"] == pytest.approx(before["parts"]["tests"] + 10, abs=0.2)


def test_little_is_summed(measured, monkeypatch):
    plugin, _ = measured
    monkeypatch.setattr(durations, "LITTLE", 1e9)
    table = plugin.table()
    assert list(table["files"]) == ["others"] and table["files"]["others"][0] == 2
