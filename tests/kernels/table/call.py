"""`Call`: a kernel with its arguments, for each language; `case` enters scenes of calls.

A scene is written once: a generator of calls, which is sent back what NumPy's version of each
writes. `tests/kernels/test_table.py` holds NumPy to `plain`, a formula written out, and C to NumPy;
`tests/kernels/cuda/test_table.py` holds CUDA to NumPy, and counts launches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.matrices import Matrices
from tests.marks import exhaustive

Scene = Generator["Call", Any, None]


class Values:
    """An argument that lives on the device: plain NumPy arrays among arguments are tables."""

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array)


class Scratch(Values):
    """Room of so many elements: what a kernel leaves in it does not matter."""

    def __init__(self, size: int, dtype: Any) -> None:
        super().__init__(np.full(size, np.nan, dtype))


class Call:
    """A kernel with its arguments, the last of which it overwrites.

    Args:
        arguments:  arrays of numbers are `Values`.
        plain:      what the output becomes, by a formula in float64; a tuple of several.
        near:       of NumPy's version to `plain`, relatively.
        outputs:    how many of the last arguments are outputs.
        launches:   of the CUDA version.
        rtol, atol: of the CUDA version in float32, and of as many roundings in float64.
        exact:      languages that have each bit: "numpy" of the formula, "c" and "cuda" of NumPy.
        alone:      whether a segment has the same bits alone, in C and CUDA.
        uploads:    of tables, for CUDA, where that is said.
        by_plain:   whether CUDA is held to `plain`: NumPy rounds long sums in another order.
        over:       the argument that the output may lie over.
        apart:      whether rows of `Values` may lie in wider ones, for NumPy and C.
    """

    def __init__(
        self, kernel: Callable[..., Any], *arguments: Any, plain: Any = None, near: float = 1e-12,
        outputs: int = 1,
        launches: int = 1, rtol: float = 1e-5, atol: float = 1e-6, exact: str = "",
        by_plain: bool = False, over: int | None = None, apart: bool = False, alone: bool = False,
        uploads: int | None = None, **named: Any,
    ) -> None:  # fmt: skip
        self.kernel, self.arguments, self.named = kernel, arguments, named
        self.plain, self.launches, self.by_plain = plain, launches, by_plain
        self.rtol, self.atol = (0.0, 0.0) if "cuda" in exact else (rtol, atol)
        self.alone, self.uploads, self.near = alone, uploads, near
        self._by_numpy: dict[bool, list[Any]] = {}
        self.exact, self.over, self.apart, self.outputs = exact, over, apart, outputs

    def has(self, language: str) -> bool:
        """Whether the kernel has a version; in C, matrices come to it one by one."""
        has_matrices = any([isinstance(argument, Matrices) for argument in self.arguments])
        is_there = vars(self.kernel).get(language) is not None
        return is_there and not (language == "c" and has_matrices)

    def expected(self) -> list[Array | None]:
        """`plain` of each output."""
        return list(self.plain) if isinstance(self.plain, tuple) else [self.plain]

    def on_host(self, is_apart: bool = False) -> list[Any]:
        """Copies of the arguments, `Values` as arrays."""
        return [_copy(argument, is_apart) for argument in self.arguments]

    def on_device(self) -> list[Any]:
        """The arguments, `Values` on the device."""
        make = queue().cupy.asarray

        def on_device(argument: Any) -> Any:
            if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
                return changed(argument, on_device)
            return make(argument.array) if isinstance(argument, Values) else argument

        return [on_device(argument) for argument in self.arguments]

    def by_numpy(self, is_apart: bool = False) -> list[Any]:
        """The arguments after NumPy's version ran, once."""
        if is_apart not in self._by_numpy:
            arguments = self._by_numpy[is_apart] = self.on_host(is_apart)
            with library.reference_only(), np.errstate(all="ignore"):
                self.kernel(*arguments, **self.named)
        return self._by_numpy[is_apart]

    def segments_alone(self, arguments: list[Any]) -> Iterator[tuple[Any, Any]]:
        """The output of each segment, and what a run of it alone leaves."""
        (place,) = [k for k, a in enumerate(self.arguments) if isinstance(a, np.ndarray)]
        offsets = self.arguments[place]
        self.kernel(*arguments, **self.named)
        for start, end in itertools.pairwise(offsets.tolist()):
            rows = [a[start:end] for a in arguments if a is not offsets]
            own = rows[-1].copy()
            rows.insert(place, np.array([0, end - start]))
            self.kernel(*rows[:-1], own, **self.named)
            yield rows[-1], own

    def in_place(self, arguments: list[Any]) -> tuple[Any, Any]:
        """The results of a run in an output of its own, and in one that lies over an argument."""
        assert self.over is not None
        for given in (arguments, shared := [*arguments[:-1], arguments[self.over]]):
            self.kernel(*given, **self.named)
        return arguments[-1], shared[-1]


def changed(instance: Any, change: Callable[[Any], Any]) -> Any:
    """A dataclass whose `Values` are changed; it is returned itself where it has none."""
    fields = {each.name: getattr(instance, each.name) for each in dataclasses.fields(instance)}
    held = {name: change(value) for name, value in fields.items() if isinstance(value, Values)}
    return dataclasses.replace(instance, **held) if held else instance


def _copy(argument: Any, is_apart: bool) -> Any:
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        return argument._make([_copy(value, is_apart) for value in argument])
    if dataclasses.is_dataclass(argument) and not isinstance(argument, type):
        return changed(argument, lambda value: _copy(value, is_apart))
    if not isinstance(argument, Values):
        return argument
    array = argument.array
    if not is_apart or array.ndim != 2:
        return array.copy()
    return np.pad(array, ((0, 0), (1, 2)))[:, 1 : 1 + array.shape[1]]


ALL = "numpy c cuda"


class Case(NamedTuple):
    """A scene with its parameters; `is_quick` if it is tried without `--all`."""

    name: str
    scene: Callable[..., Scene]
    parameters: Mapping[str, Any]
    is_quick: bool

    def calls(self, dtype: Any) -> Scene:
        return self.scene(np.dtype(dtype), **self.parameters)

    def has(self, language: str) -> bool:
        """Whether its kernels have a version: "c" or "cuda"; those of a scene have the same."""
        if self.scene not in FIRST:
            FIRST[self.scene] = next(self.calls("float64"))
        return FIRST[self.scene].has(language)

    def each(self, dtype: Any, check: Callable[[Call], object]) -> None:
        """Check each call of the scene; NumPy's output of each goes on to the next."""
        scene = self.calls(dtype)
        call = next(scene)
        while True:
            check(call)
            try:
                outputs = call.by_numpy()[-call.outputs :]
                call = scene.send(outputs[0] if call.outputs == 1 else outputs)
            except StopIteration:
                return


CASES: list[Case] = []
FIRST: dict[Callable[..., Scene], Call] = {}
"""A call of each scene."""


def case(**parameters: Mapping[str, Any] | Sequence[Any]) -> Callable[..., Callable[..., Scene]]:
    """Enter a scene with each combination of parameters, named or a list.

    Those that show each value of each parameter once are tried without `--all`.
    """

    def enter(scene: Callable[..., Scene]) -> Callable[..., Scene]:
        lists = [
            each.items() if isinstance(each, Mapping) else [(str(value), value) for value in each]
            for each in parameters.values()
        ]
        most = max(map(len, lists))
        quick = [[list(each)[k % len(each)][0] for each in lists] for k in range(most)]
        for chosen in itertools.product(*lists):
            names = [name for name, _ in chosen]
            values = dict(zip(parameters, [value for _, value in chosen], strict=True))
            name = "-".join([scene.__name__, *names])
            CASES.append(Case(name, scene, values, names in quick))
        return scene

    return enter


def every(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrize a test by cases."""
    marked = [each if each.is_quick else exhaustive(each) for each in cases]
    return pytest.mark.parametrize("case", marked, ids=[each.name for each in cases])


def normal(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def room(like: Array) -> Values:
    """An output to be overwritten, of the array's shape and type."""
    return Values(np.full(like.shape, 7, like.dtype))


def places(like: Array) -> Values:
    """An output of places for such numbers."""
    return Values(np.full(like.shape, -1, f"i{like.itemsize}"))
