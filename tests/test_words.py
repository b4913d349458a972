"""One meaning a word, and whole sentences."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import dynbatch as db

PACKAGE = Path(db.__file__).parent


def definitions():
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        place = path.relative_to(PACKAGE).as_posix()
        yield place, tree
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{place}:{node.lineno}", node


def test_no_class_name_stands_twice_in_the_package():
    places = defaultdict(list)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_alias_of_arrays_is_defined_once():
    alias = re.compile(r"^Array\b.*= np\.ndarray", re.MULTILINE)
    defining = [path.name for path in PACKAGE.rglob("*.py") if alias.search(path.read_text())]
    assert defining == ["backend.py"]


def test_no_docstring_begins_as_a_fragment():
    fragment = re.compile(r"(Of|The same|Those|As)\b")
    assert [
        f"{place}: {text.splitlines()[0]}"
        for place, node in definitions()
        if fragment.match(text := ast.get_docstring(node) or "")
    ] == []
