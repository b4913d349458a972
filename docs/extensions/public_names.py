"""The public names of the package: the reference holds them, and code in pages links to them."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import dynbatch

API = Path(__file__).parent.parent / "api"
DIRECTIVE = re.compile(
    r"^\.\. (?:currentmodule|data|auto(?:class|function|exception|data)):: ([\w.]+)", re.M
)
# The rooms with names for users: those of `import dynbatch`, and what is imported from elsewhere.
ROOMS = [
    "dynbatch",
    *(
        f"dynbatch.{name}"
        for name in dynbatch.__all__
        if isinstance(getattr(dynbatch, name), ModuleType)
    ),
    *("dynbatch.models.pretrained", "dynbatch.padding", "dynbatch.tasks", "dynbatch.text"),
    *(["dynbatch.torch"] if find_spec("torch") else []),
]


def prefixes(room: str) -> list[str]:
    """Prefixes of names as pages write them: `F.tanh`, `models.LSTM`, `db.errors.ShapeError`."""
    last = room.rpartition(".")[2]
    short = {"dynbatch": ["db."], "dynbatch.nodes": ["F.", "nodes."]}.get(room, [f"{last}."])
    return [f"{room}.", f"db.{last}.", *short, ""]


def names_of(room: str) -> list[str]:
    """The names of a room's `__all__`; of a room without one, the classes that it defines."""
    module = importlib.import_module(room)
    defined = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == room]
    names = getattr(module, "__all__", defined)
    return [name for name in names if not isinstance(getattr(module, name), ModuleType)]


@cache
def public() -> dict[str, object]:
    """Each public name, with its room, and what it names."""
    return {
        f"{room}.{name}": getattr(importlib.import_module(room), name)
        for room in ROOMS
        for name in names_of(room)
    }


@cache
def classes() -> dict[str, str]:
    """The full name of each public class by its name alone, as annotations have it."""
    return {
        full.rpartition(".")[2]: full for full, value in public().items() if inspect.isclass(value)
    }


@cache
def written() -> dict[str, str]:
    """Names as a page writes them, such as `F.tanh` or `Graph.backward`, and the full names."""
    forms: dict[str, str] = {}
    for full, value in public().items():
        room, _, name = full.rpartition(".")
        members = [name]
        if inspect.isclass(value):
            members += [f"{name}.{member}" for member in dir(value) if member[0] != "_"]
        for member in members:
            for prefix in prefixes(room):
                if prefix or member[0].isupper():  # `scan` alone may be any scan
                    forms.setdefault(prefix + member, f"{room}.{member}")
    return forms


def undocumented() -> list[str]:
    """The public names that no page of docs/api has, under any name of the same object."""
    known = set()
    for page in API.glob("*.md"):
        room = ""
        for name in DIRECTIVE.findall(page.read_text("utf-8")):
            if name in ROOMS:
                room = name
            else:
                known.add(id(public().get(f"{room}.{name}")))
    return [name for name, value in public().items() if id(value) not in known]
