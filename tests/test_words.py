"""One meaning a word, and whole sentences."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import dynbatch as db

PACKAGE = Path(db.__file__).parent


class Definition(NamedTuple):
    """A module, class or function of the package."""

    place: str
    class_name: str
    docstring: str


@cache
def definitions():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = "" if isinstance(node, ast.Module) else f":{node.lineno}"
                name = node.name if isinstance(node, ast.ClassDef) else ""
                found.append(Definition(place + line, name, ast.get_docstring(node) or ""))
    return found


def test_no_class_name_stands_twice_in_the_package():
    places = defaultdict(list)
    for place, name, _ in definitions():
        if name:
            places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_alias_of_arrays_is_defined_once():
    alias = re.compile(r"^Array\b.*= np\.ndarray", re.MULTILINE)
    defining = [path.name for path in PACKAGE.rglob("*.py") if alias.search(path.read_text())]
    assert defining == ["backend.py"]


def test_no_docstring_begins_as_a_fragment():
    fragment = re.compile(r"(Of|The same|Those|As)\b")
    assert [
        f"{place}: {text.splitlines()[0]}"
        for place, _, text in definitions()
        if fragment.match(text)
    ] == []
