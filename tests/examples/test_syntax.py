"""Syntax trees: what a function's tree holds, parts of the library, hidden nodes, baselines."""

import numpy as np
import pytest

from dynbatch.errors import DataError
from dynbatch.text import Vocabulary
from examples.corpora.syntax import Function, functions, load, part_of
from examples.trees import syntax
from examples.trees.syntax import by_place, hidden_nodes, labelled_trees

SOURCE = """
import os

class Path:
    def exists(self):
        def inner(): return 1
        return os.stat(self.text)

async def wait(): pass
"""


def test_a_function_is_a_tree_of_kinds_and_fields():
    (found,) = functions("def f(x): return x + 1")
    kinds = "FunctionDef arguments Return arg BinOp Name Add Constant"
    assert found.kinds == tuple(kinds.split())
    assert found.fields == ("", "args", "body", "args", "value", "left", "op", "right")
    assert found.heads == (-1, 0, 0, 1, 2, 4, 4, 4)


def test_methods_are_functions_and_inner_functions_are_parts_of_theirs():
    wait, exists = functions(SOURCE)
    assert wait.kinds[0] == "AsyncFunctionDef" and exists.kinds.count("FunctionDef") == 2


def test_a_file_of_another_python_has_no_functions():
    assert list(functions("print 'hello'")) == []


def test_files_of_tests_and_of_packages_are_left_out(tmp_path):
    for name in ("a.py", "test/b.py", "c/site-packages/d.py", "c/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"def f():\n    {name.count('/')}")
    found = [one for split in ("train", "dev", "test") for one in load(split, tmp_path)]
    assert len(found) == 2
    assert {part_of(name) for name in ("ast.py", "heapq.py")} <= {"train", "dev", "test"}


def test_a_folder_without_sources_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no Python source"):
        load("train", tmp_path)


def chain(*kinds):
    count = len(kinds)
    return Function(kinds, ("", *["body"] * (count - 1)), tuple(range(-1, count - 1)))


def test_hidden_nodes_are_a_share_of_all_but_the_root():
    function = chain(*"ABCDEFGHIJKLMNOPQRSTU")
    hidden = hidden_nodes(function, 5)
    assert len(hidden) == 3 and hidden.min() > 0 and len(set(hidden.tolist())) == 3
    assert np.array_equal(hidden, hidden_nodes(function, 5))
    assert any(not np.array_equal(hidden, hidden_nodes(function, other)) for other in range(9))


def test_kinds_of_hidden_nodes_are_not_shown():
    given = [chain("A", "B"), chain("A", "C", "B")]
    kinds, fields = Vocabulary.build([one.kinds for one in given]), Vocabulary(["", "body"])
    for tree, function in zip(labelled_trees(given, kinds, fields), given, strict=True):
        shown = tree.features[0]
        assert kinds.decode(tree.labels) == [function.kinds[node] for node in tree.asked]
        assert (shown[tree.asked] == kinds.unknown).all()
        assert (shown == kinds.unknown).sum() == len(tree.asked)


def test_the_baseline_knows_the_usual_kind_of_a_place():
    train = [chain("A", "B"), chain("A", "B"), chain("A", "C"), chain("D", "C"), chain("E", "B")]
    assert by_place(train, [chain("A", "B"), chain("D", "C")]) == 1.0
    assert by_place(train, [chain("A", "C")]) == 0.0
    assert by_place(train, [chain("X", "B")]) == 1.0  # an unseen place: most frequent of all


def test_the_example_trains_and_reports(capsys, tmp_path, monkeypatch):
    names = [f"file{k}.py" for k in range(80)]
    assert {part_of(name) for name in names} == {"train", "dev", "test"}
    for name in names:
        (tmp_path / name).write_text(SOURCE)
    monkeypatch.setattr(syntax, "load", lambda split: load(split, tmp_path))
    assert syntax.main(["--limit", "20", "--epochs", "1", "--hidden", "4", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "padded to the largest tree" in printed and printed.count("right") == 3
