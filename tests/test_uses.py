import subprocess
from pathlib import Path

import pytest

from tests.changed import distances, files_with_tests
from tests.uses import Repository, Text

ROOT = Path(__file__).parent.parent


@pytest.fixture
def uses(tmp_path):
    """The files that one file uses in a repository of some texts."""

    def of(file, texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return Repository(tmp_path, texts).uses(file)

    return of


PACKAGE = {
    "dynbatch/__init__.py": "from dynbatch.cells import scan\n__all__ = ['scan']\n",
    "dynbatch/cells/__init__.py": "from dynbatch.cells.scan.loop import scan\n",
    "dynbatch/cells/scan/__init__.py": "",
    "dynbatch/cells/scan/loop.py": "def scan(): pass\ndef unused(): pass\n",
    "dynbatch/nodes/__init__.py": "from dynbatch.nodes.unary import *\n",
    "dynbatch/nodes/unary.py": "def tanh(): pass\n",
}


def test_a_name_leads_to_the_file_that_defines_it(uses):
    program = "import dynbatch as db\nfrom dynbatch import nodes as F\ndb.scan(F.tanh, F.absent)\n"
    assert uses("program.py", {**PACKAGE, "program.py": program}) == {
        "dynbatch/__init__.py", "dynbatch/cells/scan/loop.py",
        "dynbatch/nodes/__init__.py", "dynbatch/nodes/unary.py",
    }  # fmt: skip


def test_a_package_does_not_use_the_names_that_it_hands_on(uses):
    assert "dynbatch/cells/scan/loop.py" not in uses("dynbatch/__init__.py", PACKAGE)
    assert uses("dynbatch/nodes/__init__.py", PACKAGE) == set()


def test_a_module_that_is_imported_for_what_it_does_is_used(uses):
    rules = {"rules/__init__.py": "from rules import linear\n", "rules/linear.py": "import numpy\n"}
    assert uses("rules/__init__.py", rules) == {"rules/linear.py"}
    program = {"program.py": "import rules.linear\n", **rules}
    assert "rules/linear.py" in uses("program.py", program)


def test_a_kernel_uses_its_versions_and_sources_and_these_what_they_include(uses):
    folder = "dynbatch/kernels/"
    names = ["sum.py", "c/sum.py", "c/sources/sum.c", "c/sources/walk.h", "cuda/sources/sum_all.cu"]
    texts = {folder + name: "" for name in [*names, "cuda/sum.py", "mean.py", "c/mean.py"]}
    texts[f"{folder}c/sources/sum.c"] = '#include <math.h>\n  #include "walk.h"\n'
    assert uses(f"{folder}sum.py", texts) == {f"{folder}c/sum.py", f"{folder}cuda/sum.py"}
    assert uses(f"{folder}c/sum.py", texts) == {f"{folder}c/sources/sum.c"}
    assert uses(f"{folder}cuda/sum.py", texts) == {f"{folder}cuda/sources/sum_all.cu"}
    assert uses(f"{folder}c/sources/sum.c", texts) == {f"{folder}c/sources/walk.h"}


def test_a_test_uses_the_file_that_it_is_named_after_and_its_fixtures(uses):
    others = ["tests/conftest.py", "tests/a/conftest.py", "tests/b/conftest.py", "dynbatch/a/b.py"]
    texts = dict.fromkeys(["tests/a/test_b.py", *others], "")
    assert uses("tests/a/test_b.py", texts) == {*others} - {"tests/b/conftest.py"}


def test_strings_name_files_and_those_of_tests_patterns_and_modules_too(uses):
    paths = ["pages/one.md", "pages/two.md", "c/sources/sum.c", "a/b.py", "a/c.py"]
    texts, docstring = dict.fromkeys(paths, ""), '    """As a/c.py."""\n'
    program = f'"""Runs sum.c."""\nrun("a/b.py", "pages/*.md", "import a.c")\ndef f():\n{docstring}'
    named = {"c/sources/sum.c", "a/b.py"}
    assert uses("program.py", {**texts, "program.py": program}) == named
    read = {*named, "pages/one.md", "pages/two.md", "a/c.py"}
    assert uses("tests/test_x.py", {**texts, "tests/test_x.py": program}) == read


@pytest.mark.exhaustive
def test_no_file_of_the_package_is_more_than_two_uses_away_from_a_test():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    repository = Repository(ROOT, listed.stdout.splitlines())
    tests = files_with_tests(repository)
    for file in repository.files:
        if file.startswith("dynbatch/") and file.endswith((".py", ".c", ".h", ".cu", ".cuh")):
            near = distances([file], repository.users)
            assert min(near.get(test, 9) for test in tests) <= 2, file


def test_only_texts_that_are_new_are_read_anew(tmp_path, monkeypatch):
    read, parse = [], Text.__init__
    monkeypatch.setattr(Text, "__init__", lambda one, text: read.append(text) or parse(one, text))
    for one in ("import a", "import a", "import c"):
        (tmp_path / "a.py").write_text("x = 1")
        (tmp_path / "b.py").write_text(one)
        found = Repository(tmp_path, ["a.py", "b.py"], tmp_path).uses("b.py")
        assert found == ({"a.py"} if one == "import a" else set())
    assert sorted(read) == ["import a", "import c", "x = 1"]
