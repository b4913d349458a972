"""Libraries of C functions: compiled when a function is first wanted, then kept and loaded."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from dynbatch.backend import DType
from dynbatch.errors import BackendError
from dynbatch.kernels.c.runtime import cache, source
from dynbatch.kernels.c.runtime.compiler import compiler, key_of
from dynbatch.recent import free_at_fork

VARIABLE = "DYNBATCH_NATIVE"
SCALARS = {"f": "float", "d": "double"}

_lock = free_at_fork(threading.Lock())


class NativeCode:
    """Whether C is used in this process, and why not."""

    is_off = os.environ.get(VARIABLE, "") == "0"
    failure = ""


switch = NativeCode()


def reason() -> str:
    """Why no C kernels run in this process, or "" if they do."""
    if switch.is_off:
        return f"{VARIABLE}=0 turns them off"
    if compiler() is None:
        return "there is no C compiler: install gcc or clang, or pip install 'dynbatch[compiler]'"
    return switch.failure


@contextmanager
def reference_only() -> Iterator[None]:
    """Run NumPy's versions inside the block, in all threads."""
    before, switch.is_off = switch.is_off, True
    try:
        yield
    finally:
        switch.is_off = before


class Library:
    """The functions of one C source, for each scalar type.

    Args:
        name: the source's path below `kernels/c`, e.g. "softmax.c", or what messages call `body`.
        body: its text; by default the file's.
    """

    def __init__(self, name: str, body: str | None = None) -> None:
        self.name = name
        self._body = body
        self._functions: dict[str, SimpleNamespace | None] = {}

    def functions(self, dtype: DType) -> SimpleNamespace | None:
        """The functions by name, which work on arrays of a dtype; None where C is not used."""
        if switch.is_off:
            return None
        char = dtype.char
        if char not in self._functions:
            self._load(char)
        return self._functions[char]

    def _load(self, char: str) -> None:
        with _lock:
            if char in self._functions:
                return
            scalar = SCALARS.get(char)
            loaded = None
            if scalar is not None and not reason():
                try:
                    loaded = self._open(scalar)
                except (BackendError, OSError) as error:
                    _give_up(str(error))
            self._functions[char] = loaded

    def _open(self, scalar: str) -> SimpleNamespace:
        body = source.read(self.name) if self._body is None else self._body
        if self._body is None:
            build([(name, source.read(name)) for name in source.names()], scalar)
        (path,) = build([(self.name, body)], scalar)
        library = ctypes.CDLL(str(path))
        functions = SimpleNamespace()
        for name, types in source.parameters(body).items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, None
            setattr(functions, name, function)
        return functions


def _give_up(why: str) -> None:
    """Run NumPy's versions for the rest of the process, and say so once."""
    if not switch.failure:
        switch.failure = why
        print(f"dynbatch: NumPy runs in place of C kernels: {why}", file=sys.stderr)


def build(bodies: Sequence[tuple[str, str]], scalar: str) -> list[Any]:
    """The compiled libraries of some sources, by name and text; compiles those not yet kept.

    Raises:
        BackendError: there is no compiler, or it fails.
        OSError: they cannot be kept.
    """
    chosen = compiler()
    if chosen is None:
        raise BackendError(reason())
    found, missing = [], []
    for position, (name, body) in enumerate(bodies):
        text = source.join(name, body, scalar)
        label = f"{name.removesuffix('.c').replace('/', '_')}-{scalar}"
        key = key_of(text, chosen)
        found.append(cache.find(label, key))
        if found[-1] is None:
            missing.append((position, label, key, text))
    if missing:
        started = time.perf_counter()
        told = f"dynbatch: compiling {len(missing)} C kernel files for this processor, once ..."
        print(told, end="", file=sys.stderr, flush=True)

        def make(job: tuple[int, str, str, str]) -> None:
            position, label, key, text = job
            found[position] = cache.keep(label, key, lambda path: chosen.compile(text, path))

        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                list(pool.map(make, missing))
        finally:
            print(f" {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return found
