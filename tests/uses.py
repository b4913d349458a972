"""Uses of files of the repository by others, read from their texts alone.

A Python file uses the modules that define the names it speaks of: `db.scan` leads to the file of
`scan`, not to `dynbatch/__init__.py`, which hands the name on. Further, a kernel uses its versions
and sources in C and CUDA, a test the file that it is named after and its folders' fixtures, and any
file those that its strings and includes name.
"""

from __future__ import annotations

import ast
import hashlib
import os
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

C = (".c", ".h", ".cu", ".cuh")
DOTTED = re.compile(r"\w+(?:\.\w+)+")
PATH = re.compile(r"[\w.*/-]*\.\w+\b")
INCLUDE = re.compile(r'^\s*#include "(.+)"', re.MULTILINE)
KERNELS = "dynbatch/kernels/"

Name = tuple[str, tuple[str, ...]]
"""A module, dotted, and attributes to look up in it, one in the other."""


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def subject_of(test: str) -> str:
    """The path that a test is named after, without an ending: `dynbatch/a/b` of a/test_b.py."""
    return f"dynbatch/{test.removeprefix('tests/').replace('test_', '').removesuffix('.py')}"


def without_ending(path: str) -> str:
    """`dynbatch/kernels/c/softmax` of dynbatch/kernels/c/softmax.py and of c/sources/softmax.c."""
    return path.rpartition(".")[0].replace("/sources/", "/").removesuffix("/__init__")


class Text:
    """A Python text: the names that it binds by imports, defines and uses, and its strings."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        functions = (ast.FunctionDef, ast.ClassDef)
        self.defined = [node.name for node in tree.body if isinstance(node, functions)]
        self.bound: dict[str, Name] = {}
        self.imported: set[str] = set()
        self.stars: set[str] = set()
        self.strings: set[str] = set()
        docstrings: set[str] = set()
        names: list[Name] = []
        nodes: list[Any] = [tree]
        while nodes:
            node, attributes = nodes.pop(), ()
            while type(node) is ast.Attribute:
                node, attributes = node.value, (node.attr, *attributes)
            kind = type(node)
            if kind is ast.Name:
                names.append((node.id, attributes))
                continue
            if kind is ast.Import:
                for name, new in [(alias.name, alias.asname) for alias in node.names]:
                    self.imported.add(name)
                    first = name.partition(".")[0]
                    self.bound[new or first] = (name if new else first, ())
            elif kind is ast.ImportFrom and node.module and not node.level:
                for name, new in [(alias.name, alias.asname) for alias in node.names]:
                    self.imported.add(f"{node.module}.{name}")
                    self.bound[new or name] = (node.module, (name,))
                    if name == "*":
                        self.stars.add(node.module)
            elif kind is ast.Expr and type(node.value) is ast.Constant:
                docstrings.add(str(node.value.value))
            elif kind is ast.Constant and type(node.value) is str:
                self.strings.add(node.value)
            for value in vars(node).values():  # as `ast.walk` does, which takes longer
                if type(value) is list:
                    nodes += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST):
                    nodes.append(value)
        # Docstrings of functions give examples; that of a module may name its sources.
        self.strings -= docstrings - {ast.get_docstring(tree, clean=False)}
        self.has_doctests = any(">>> " in text for text in docstrings)
        self.used = {
            (module, first + attributes)
            for name, attributes in set(names)
            if name in self.bound
            for module, first in [self.bound[name]]
        }


def texts_of(sources: Mapping[str, str], store: Path | None) -> dict[str, Text]:
    """Parsed texts by the names of their modules; where there is a `store`, only new ones anew."""
    digests = {name: hashlib.blake2b(source.encode()).digest() for name, source in sources.items()}
    kept: dict[bytes, Text] = {}
    if store and store.exists():
        kept = pickle.loads(store.read_bytes())
    texts = {name: kept.get(digests[name]) or Text(source) for name, source in sources.items()}
    new = {digests[name]: text for name, text in texts.items()}
    if store and new.keys() != kept.keys():
        unfinished = store.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(new))
        unfinished.replace(store)
    return texts


class Repository:
    """The files below a folder, and what each uses of the others.

    Args:
        root:  the folder.
        files: paths below it.
        store: a folder for what was read, so that the next time only changes are.
    """

    def __init__(self, root: Path, files: Iterable[str], store: Path | None = None) -> None:
        self.root = root
        self.files = frozenset(files)
        self.modules = {module_of(file): file for file in self.files if file.endswith(".py")}
        sources = {name: self._text(file) for name, file in self.modules.items()}
        version = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8).hexdigest()
        self.texts = texts_of(sources, store and store / f"{version}.pickle")
        for text in self.texts.values():
            for module in text.stars & self.modules.keys():
                names = self.texts[module].defined
                text.bound |= {name: (module, (name,)) for name in names}
        self._by_name = defaultdict(set)
        for file in self.files:
            self._by_name[file].add(file)
            if not file.endswith(".py"):
                self._by_name[PurePath(file).name].add(file)

    def _text(self, file: str) -> str:
        return (self.root / file).read_text("utf-8")

    @cached_property
    def users(self) -> Mapping[str, set[str]]:
        """The files that use each file."""
        users = defaultdict(set)
        for file in self.files:
            for used in self.uses(file) - {file}:
                users[used].add(file)
        return users

    def uses(self, file: str) -> set[str]:
        """The files that a file uses itself."""
        if file.endswith(C):
            names = [PurePath(path).name for path in INCLUDE.findall(self._text(file))]
            return {one for name in names for one in self._by_name.get(name, ())}
        if not file.endswith(".py"):
            return set()
        text = self.texts[module_of(file)]
        homes = self.homes(file)
        # Modules may be imported for what they do; other names that are not used are handed on.
        homes |= {self.modules[module] for module in text.imported & self.modules.keys()}
        reads = file.startswith(("tests/", "docs/"))
        named = [self.named_in(string, reads) for string in text.strings]
        return homes.union(self._by_path(file), *named)

    def homes(self, file: str) -> set[str]:
        """The files that define the names which a module speaks of."""
        used = self.texts[module_of(file)].used
        return {self.modules[home] for home in map(self.home, used) if home}

    def home(self, name: Name) -> str | None:
        """The module that defines a name, through those that hand it on; None: another project."""
        module, attributes = name
        while attributes:
            text = self.texts.get(module)
            handed_on = text.bound.get(attributes[0]) if text else None
            if handed_on and handed_on != (module, attributes[:1]):
                module, attributes = handed_on[0], handed_on[1] + attributes[1:]
            elif not text or f"{module}.{attributes[0]}" in self.modules:
                module, attributes = f"{module}.{attributes[0]}", attributes[1:]
            else:
                break
        return module if module in self.modules else None

    def named_in(self, string: str, reads: bool) -> set[str]:
        """The files that a string names by path or name; where it `reads`, by pattern or module."""
        words = set(PATH.findall(string))
        files = {file for word in words for file in self._by_name.get(word, ())}
        if reads:
            for pattern in [word for word in words if "*" in word]:
                files |= {file for file in self.files if PurePath(file).match(pattern)}
            modules = self.modules.keys() & set(DOTTED.findall(string))
            files |= {self.modules[module] for module in modules}
        return files

    def _by_path(self, file: str) -> set[str]:
        """The subject of a test and its folders' fixtures; versions and sources of a kernel."""
        others = {f"{parent}/conftest.py" for parent in PurePath(file).parents}
        if file.startswith("tests/"):
            others |= {f"{subject_of(file)}{end}" for end in (".py", "/__init__.py")}
        if file.startswith(KERNELS):
            kernel = file.removeprefix(KERNELS)
            others |= {f"{KERNELS}{kind}/{kernel}" for kind in ("c", "cuda")}
            others |= {
                source for source in self.files
                if source.endswith(C) and without_ending(source).startswith(without_ending(file))
            }  # fmt: skip
        return others & self.files
