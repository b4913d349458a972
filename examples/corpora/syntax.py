"""Syntax trees of the functions of Python's own standard library: no download.

Natural trees of very different sizes, 3 to 1,800 nodes of about 90 kinds. Numbers depend on the
Python version; its tests and what is installed beside it are left out.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from dynbatch.errors import DataError

Split = Literal["train", "dev", "test"]

_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True, slots=True)
class Function:
    """The syntax tree of one function. All three have one entry a node, a head before its children.

    Args:
        kinds:  class of the node: FunctionDef, Call, Name, … Contexts (Load, Store) are left out.
        fields: what it is to its head: body, func, args, …; "" for the root.
        heads:  number of its head, counted from 0; -1 for the root, which is node 0.
    """

    kinds: tuple[str, ...]
    fields: tuple[str, ...]
    heads: tuple[int, ...]


def load(split: Split, folder: str | Path | None = None) -> list[Function]:
    """Functions and methods of one part of the library, those within others as parts of these.

    Whole files belong together: the SHA-256 of a file's path, modulo 20, is 0 for test, 1 for dev.

    Args:
        folder: where the sources are; by default the standard library of the running Python.

    Raises:
        DataError: there are none, as where Python was installed without its sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"] if folder is None else folder)
    paths = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    used = [path for path in paths if not _is_left_out(path)]
    if not used:
        raise DataError(
            f"{root}: no Python source in it.\n  fix: give the folder of a Python with sources"
        )
    return [
        function
        for path in used
        if part_of(path.as_posix()) == split
        for function in functions((root / path).read_bytes())
    ]


def part_of(path: str) -> Split:
    """The part that a file belongs to, by its path from the library's folder."""
    number = int(sha256(path.encode()).hexdigest(), 16) % 20
    return "test" if number == 0 else "dev" if number == 1 else "train"


def _is_left_out(path: Path) -> bool:
    return any(part in _LEFT_OUT or "test" in part for part in path.parts)


def functions(source: bytes | str) -> Iterator[Function]:
    """The functions of one file, from outside in; none where the syntax is of another Python."""
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return
    for node in waiting:  # grows as it goes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _function(node)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _function(root: ast.AST) -> Function:
    found: list[tuple[ast.AST, str, int]] = [(root, "", -1)]
    for number, (node, _, _) in enumerate(found):  # grows as it goes
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                    found.append((child, field, number))
    nodes, fields, heads = zip(*found, strict=True)
    return Function(tuple([type(node).__name__ for node in nodes]), fields, heads)
