"""One meaning a word, and whole sentences."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import dynbatch as db

pytestmark = pytest.mark.slow

PACKAGE = Path(db.__file__).parent
ROOT = PACKAGE.parent


class Definition(NamedTuple):
    """A module, class or function of the repository."""

    where: str
    class_name: str
    name: str
    docstring: str


FRAGMENT = re.compile(
    r"(What|Where|How|Which|Why|When|Of|The same|Those|As|It|Its|Their|Also|All of it)\b"
)
"""First words of a docstring that begins neither with an imperative nor with a noun phrase."""

NAMELESS = {"found", "given", "place", "own"}
"""Names of variables that say nothing of what they hold."""


@cache
def trees(folder):
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def definitions(folder):
    found = []
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = "" if isinstance(node, ast.Module) else f":{node.lineno}"
                name = getattr(node, "name", "")
                class_name = name if isinstance(node, ast.ClassDef) else ""
                docstring = ast.get_docstring(node) or ""
                found.append(Definition(path + line, class_name, name, docstring))
    return found


def locals_of(tree):
    """Names that functions assign, with their lines; fields of a class are names of users."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        (node.lineno, node.id)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_no_class_name_stands_twice_in_the_package():
    places = defaultdict(list)
    for where, class_name, *_ in definitions("dynbatch"):
        if class_name:
            places[class_name].append(where)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_alias_of_arrays_is_defined_once():
    alias = re.compile(r"^Array\b.*= np\.ndarray", re.MULTILINE)
    defining = [path.name for path in PACKAGE.rglob("*.py") if alias.search(path.read_text())]
    assert defining == ["backend.py"]


@pytest.mark.parametrize("folder", ["dynbatch", "benchmarks", "examples", "docs", "tests"])
def test_no_docstring_begins_as_a_fragment(folder):
    # A test's docstring goes on with the sentence that its name begins.
    assert [
        f"{one.where}: {one.docstring.splitlines()[0]}"
        for one in definitions(folder)
        if FRAGMENT.match(one.docstring) and not one.name.startswith("test_")
    ] == []


def test_every_local_variable_is_named_by_the_noun_that_it_holds():
    assert [
        f"{path}:{line}: {name}"
        for path, tree in trees("dynbatch").items()
        for line, name in sorted(locals_of(tree))
        if name in NAMELESS
    ] == []
