import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.changed import (
    FAR,
    Changed,
    changed_since,
    choose,
    distances,
    git,
    nearest_cases,
    seconds_of,
)
from tests.node_cases import CASES

ROOT = Path(__file__).parent.parent

TEXTS = {
    "dynbatch/nodes/tanh.py": 'def tanh():\n    """>>> 1\n    1"""\n',
    "dynbatch/nodes/sum.py": "def sum(): pass\n",
    "tests/nodes/test_tanh.py": "def test_it(): pass\n",
    "tests/nodes/test_sum.py": "def test_it(): pass\n",
    "tests/node_cases.py": "",
    "tests/models/test_lstm.py": "import dynbatch.nodes.tanh\ndef test_it(): dynbatch.nodes.tanh\n",
    "tests/models/test_gru.py": "from dynbatch.nodes import tanh\ndef test_it(): tanh.tanh()\n",
    "page.md": "",
    "deleted.py": "",
}


@pytest.fixture
def repository(tmp_path):
    """A repository of git with a commit on main and one on a branch of it."""
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--initial-branch", "main")
    commit(tmp_path)
    git(tmp_path, "switch", "--create", "topic")
    with (tmp_path / "dynbatch/nodes/tanh.py").open("a") as file:
        file.write("# changed\n")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    assert git(folder, "add", "--all") == []
    assert git(folder, *identity, "commit", "--message", "Change it")


def write_elsewhere(folder):
    """A commit on main that the branch does not have."""
    git(folder, "switch", "main")
    (folder / "dynbatch/nodes/sum.py").write_text("")
    commit(folder)
    git(folder, "switch", "topic")


def test_a_change_is_what_was_committed_edited_or_added_since_the_base(repository):
    write_elsewhere(repository)
    (repository / "page.md").write_text("edited")
    (repository / "new.py").touch()
    (repository / "deleted.py").unlink()
    edited = ["deleted.py", "new.py", "page.md"]
    assert changed_since(repository, "") == [edited[0], "dynbatch/nodes/tanh.py", *edited[1:]]
    assert changed_since(repository, "HEAD") == edited


def test_a_base_that_git_does_not_know_is_refused(repository):
    with pytest.raises(pytest.UsageError, match="git knows no commit 'mian'"):
        changed_since(repository, "mian")


@pytest.mark.parametrize("end", ["tests/conftest.py", "tests/test_a.py", "dynbatch/__init__.py"])
def test_tests_fixtures_and_the_package_lead_no_further_unless_they_were_changed(end):
    users = {"a.py": ["b.py", end], end: ["tests/test_c.py"]}
    assert distances(["a.py"], users) == {"a.py": 0, "b.py": 1, end: 1}
    assert distances([end], users) == {end: 0, "tests/test_c.py": 1}


def test_near_tests_run_first_and_the_budget_is_kept():
    near = {
        "tests/a/test_b.py": 1, "tests/x/test_other_room.py": 1, "tests/a/test_slow.py": 1,
        "tests/a/test_far.py": 2, "tests/a/test_very_far.py": 9,
    }  # fmt: skip
    named, other, slow, far, very_far = near
    seconds = dict(zip(near, [50, 1, 3, 1, 0], strict=True))
    tests = [*near, "tests/a/test_unreached.py"]
    run, left = choose(tests, ["dynbatch/a/b.py"], near, seconds, budget=54)
    assert run == [named, slow, other] and left == {2: [far], FAR: [very_far]}
    # What is named after the change runs whatever it takes.
    assert choose(tests, ["dynbatch/a/b.py"], near, seconds, budget=0).run == [named]


def test_the_seconds_of_a_file_are_those_of_its_tests_and_collection_in_all_suites(tmp_path):
    path = tmp_path / "benchmarks/results/tests.json"
    path.parent.mkdir(parents=True)
    main, cuda = {"a": [9, 1.5, 0.25], "b": [1, 1, 1]}, {"a": [1, 2, 0]}
    path.write_text(json.dumps({"main": {"files": main}, "cuda": {"files": cuda}}))
    assert seconds_of(tmp_path) == {"a": 3.75, "b": 2}


def test_the_cases_of_nodes_are_those_that_run_a_near_file(monkeypatch):
    some = [case for case in CASES if case.name in ("input", "linear", "scan", "own attention")]
    monkeypatch.setattr("tests.nodes.test_contract.CASES", some)
    near = {"dynbatch/nodes/softmax.py": 0, "dynbatch/graph.py": 0}  # which all run
    assert nearest_cases(near, ROOT) == (["own attention"], 4)
    assert len(nearest_cases({"dynbatch/train/trainer.py": 0}, ROOT)[0]) == 4


def config_of(folder):
    return SimpleNamespace(
        rootpath=folder,
        args=["tests"],
        option=SimpleNamespace(ignore=None),
        ArgsSource=pytest.Config.ArgsSource,
    )


def test_pytest_runs_what_is_near_and_says_what_it_leaves_out(repository, monkeypatch):
    monkeypatch.setattr("tests.changed.BUDGET", 0)
    (repository / "page.md").write_text("edited")
    config = config_of(repository)
    config.option.ignore = [str(repository / "tests/models/test_gru")]
    lines = Changed(config, "").lines
    names = ["tests/nodes/test_tanh.py", "dynbatch/nodes/tanh.py"]
    assert sorted(config.args) == sorted(str(repository / name) for name in names)
    assert lines == [
        "changed: 2 files, nearest to which are 2 files of tests",
        "left out: 1 tests in 1 files, which reach it over 1 uses",
        "left out: tests that it does not reach; `make test` runs all",
        'left out: pages, which make docs ARGS="page" runs',
    ]


def test_where_nothing_has_changed_nothing_runs(repository):
    with pytest.raises(pytest.exit.Exception, match="nothing has changed") as caught:
        Changed(config_of(repository), "HEAD")
    assert caught.value.returncode == 0


def test_of_tests_of_node_cases_the_near_ones_run_in_each_worker():
    def item(**parameters):
        return SimpleNamespace(callspec=SimpleNamespace(params=parameters))

    items = [item(case=CASES[0]), item(case=CASES[1], k=3), item(case="other"), SimpleNamespace()]
    config, worker, deselected = config_of(ROOT), SimpleNamespace(workerinput={}), []
    first = Changed.__new__(Changed)
    first.args, first.cases = ["tests/nodes"], [CASES[1].name]
    first.pytest_configure_node(worker)
    config.workerinput = worker.workerinput
    config.hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    kept = items.copy()
    Changed(config, "").pytest_collection_modifyitems(config, kept)
    assert kept == items[1:] and deselected == items[:1]
    assert config.args == ["tests/nodes"]
