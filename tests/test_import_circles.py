"""No module needs itself, by whatever way it imports others."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dynbatch

pytestmark = pytest.mark.slow

PACKAGE = Path(dynbatch.__file__).parent


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Imports of each module: at once, in functions, and for type checkers."""
    graph = {}
    for name, path in modules.items():
        imported = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                imported |= {part if part in modules else node.module for part in parts}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[name] = (imported & modules.keys()) - {name}
    return graph


def test_no_modules_import_each_other_in_a_circle():
    graph = imports_of({name_of(path): path for path in PACKAGE.rglob("*.py")})
    assert "dynbatch.graph" in graph["dynbatch"]
    TopologicalSorter(graph).prepare()  # raises a CycleError that names a circle
