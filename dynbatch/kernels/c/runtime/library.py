"""Libraries of C functions: compiled when a function is first wanted, then kept and loaded."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

from dynbatch.backend import DType
from dynbatch.errors import BackendError
from dynbatch.kernels.c.runtime import cache, shipped, source
from dynbatch.kernels.c.runtime.compiler import NATIVE, Compiler, compiler, key_of
from dynbatch.kernels.runtime.compiling import compiling
from dynbatch.kernels.runtime.precision import FULL, MANTISSA_BITS
from dynbatch.recent import free_at_fork

# Sources in which a precompiled header, 0.7 s with GCC, is saved.
WORTH_A_HEADER = 8
SCALARS = {"f": "float", "d": "double"}
ROUNDING = ("blas.c", "convolution.c", "linear_gradients.c")
"""Sources that are compiled for each precision of products: wheels bring them so, too."""

_lock = free_at_fork(threading.Lock())


class NativeCode:
    """Whether C is used in this process, and why not; why nothing is compiled any more."""

    is_off = os.environ.get(NATIVE, "") == "0"
    failure = ""
    compiler_failure = ""


switch = NativeCode()


def reason() -> str:
    """The reason that no C kernels run in this process, or "" if they do."""
    if switch.is_off:
        return f"{NATIVE}=0 turns them off"
    if not compiles() and not shipped.levels():
        return no_compiler()
    return switch.failure


def compiles() -> bool:
    """Whether there is a compiler, which has not failed."""
    return compiler() is not None and not switch.compiler_failure


def no_compiler() -> str:
    """The reason that nothing is compiled, and the fix."""
    if switch.compiler_failure:
        return switch.compiler_failure
    if sys.platform == "emscripten":
        return "a browser has no C compiler"
    problem = shipped.supported().problem
    wheel = f", and the wheel's kernels do not run ({problem})" if problem else ""
    if os.environ.get(NATIVE) == "wheel":
        return f"{NATIVE}=wheel compiles nothing, and takes what a platform's wheel brings{wheel}"
    return (
        f"there is no C compiler{wheel}: install gcc or clang, or pip install 'dynbatch[compiler]'"
    )


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
        name: the path below `kernels/c/sources`, e.g. "softmax.c", or what messages call `body`.
        body: its text; by default the file's.
        factor_bits: bits of mantissa to which it rounds factors of float32; 0 leaves them whole.
    """

    def __init__(self, name: str, body: str | None = None, factor_bits: int = 0) -> None:
        self.name = name
        self._body = body
        self._factor_bits = factor_bits
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
            while scalar is not None and not reason():
                try:
                    with compiling():
                        loaded = self._open(scalar)
                    break
                except (BackendError, OSError) as error:
                    _give_up(str(error))
            self._functions[char] = loaded

    def _open(self, scalar: str) -> SimpleNamespace | None:
        """Load the library; None without a compiler, if the wheel has not brought it."""
        body = source.read(self.name) if self._body is None else self._body
        wanted = Unit.of(self.name, body, scalar, self._factor_bits)
        path = self._compiled(wanted, scalar) if compiles() else shipped.find(*wanted)
        if path is None:
            return None
        library = ctypes.CDLL(str(path))
        functions = SimpleNamespace()
        for name, parameters in source.parameters(body).items():
            function, types = getattr(library, name), [each.ctype for each in parameters]
            function.argtypes, function.restype = types, None
            function.packed = ctypes.cast(getattr(library, f"{name}_packed"), ctypes.c_void_p).value
            function.packing = source.packing(types)
            setattr(functions, name, function)
        return functions

    def _compiled(self, wanted: Unit, scalar: str) -> Path | None:
        """Compile the library and, with the first of the files, all others of its scalar type."""
        path = wanted.kept()
        if path is None:
            is_fixed = self._body is None and not self._factor_bits
            files = [name for name in source.names() if is_fixed and name != self.name]
            build([wanted, *[Unit.of(name, source.read(name), scalar) for name in files]])
            path = wanted.kept()
        return path


def _give_up(why: str) -> None:
    """Run the wheel's kernels or NumPy's versions for the rest of the process, and say so once."""
    if compiles() and shipped.levels():
        switch.compiler_failure = why
        print(
            f"dynbatch: the wheel's C kernels run, and nothing is compiled: {why}", file=sys.stderr
        )
    elif not switch.failure:
        switch.failure = why
        print(f"dynbatch: NumPy runs in place of C kernels: {why}", file=sys.stderr)


def of_precisions(name: str) -> dict[str, Library]:
    """A source's library for each precision of products, by `precision.of_products`.

    Args:
        name: of `ROUNDING`.
    """
    assert name in ROUNDING
    return {
        precision: Library(name, factor_bits=bits % MANTISSA_BITS[FULL])
        for precision, bits in MANTISSA_BITS.items()
    }


class Unit(NamedTuple):
    """A complete source, and a label that begins the names of its libraries."""

    label: str
    text: str

    @classmethod
    def of(cls, name: str, body: str, scalar: str, factor_bits: int = 0) -> Unit:
        """The unit of a source file's body; see `source.join`."""
        label = f"{name.removesuffix('.c').replace('/', '_')}-{scalar}{factor_bits or ''}"
        return cls(label, source.join(name, body, scalar, factor_bits))

    def kept(self) -> Path | None:
        """The path of the library, if it has been compiled."""
        return cache.find(self.label, self._key(_compiler()))

    def make(self, header: Path | None = None) -> None:
        """Compile the library, with a header of `Compiler.precompile`, and keep it.

        Raises:
            BackendError: the compiler fails.
            OSError:      it cannot be kept.
        """
        chosen = _compiler()
        key = self._key(chosen)
        cache.keep(self.label, key, lambda path: chosen.compile(self.text, path, header))

    def _key(self, chosen: Compiler) -> str:
        return key_of(self.text, chosen)


def _compiler() -> Compiler:
    """The compiler, where there is known to be one.

    Raises:
        BackendError: there is none.
    """
    chosen = compiler()
    if chosen is None:
        raise BackendError(reason())
    return chosen


def build(units: Sequence[Unit]) -> None:
    """Compile what is not kept yet, as many units at a time as there are processors.

    Processes that start together compile many of them once.

    Raises:
        BackendError: the compiler fails.
        OSError:      the libraries cannot be kept.
    """
    with cache.alone() if len(units) >= WORTH_A_HEADER else nullcontext():
        if missing := [unit for unit in units if unit.kept() is None]:
            _make(missing)


def _make(missing: Sequence[Unit]) -> None:
    files = f"{len(missing)} C file{'s' * (len(missing) > 1)}"
    dtype = "float64" if "-double" in missing[0].label else "float32"
    progress = sys.modules.get("tqdm")  # whose bars make room for a line, where there are any
    with progress.tqdm.external_write_mode(sys.stderr) if progress else nullcontext():
        print(f"dynbatch: compiling {files}, once for {dtype} ...", file=sys.stderr, flush=True)
    chosen = _compiler()
    with TemporaryDirectory() as made, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        are_many = len(missing) >= WORTH_A_HEADER
        header = chosen.precompile(Path(made)) if are_many else None
        list(pool.map(lambda unit: unit.make(header), missing))
