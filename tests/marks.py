"""Parameters of tests that are tried without `--all`, and those that `make test-all` adds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from dynbatch.kernels.c.runtime import library

needs_compiler = pytest.mark.skipif(
    bool(library.reason()) or not library.compiles(),
    reason=f"C of the test's own is to be compiled: {library.reason() or library.no_compiler()}",
)


def exhaustive(*values: Any) -> Any:
    """A set of parameters that is left out unless asked for."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def is_exhaustive(marks: Iterable[pytest.Mark]) -> bool:
    """Whether a set of parameters with these marks was made by `exhaustive`."""
    return any(mark.name == "exhaustive" for mark in marks)


def quick(some: Iterable[Any], of: Iterable[Any]) -> list[Any]:
    """All values `of`, of which `some` are always tried; tuples are several parameters each."""
    chosen = list(some)
    groups = [value if type(value) is tuple else (value,) for value in of]
    return [
        pytest.param(*group) if group in chosen or group[0] in chosen else exhaustive(*group)
        for group in groups
    ]


class Case(NamedTuple):
    """A test with a set of parameters.

    Args:
        node_id:    by which pytest names it.
        parameters: by their names.
        marks:      `parametrize` with the names that have values together.
    """

    node_id: str
    parameters: Mapping[str, Any]
    marks: Iterable[pytest.Mark]


def covering(items: Iterable[pytest.Item]) -> set[str]:
    """Node ids that show each value of each parameter of each test at least once.

    Of products of parameters these are few: as many as the longest list has values, or some more.
    Which ones they are follows from their names alone.
    """
    tests: dict[str, list[Case]] = defaultdict(list)
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        marks = list(item.iter_markers("parametrize"))
        tests[_function(item)].append(Case(item.nodeid, parameters, marks))
    return {node_id for cases in tests.values() for node_id in covering_cases(cases)}


def covering_cases(cases: Iterable[Case]) -> list[str]:
    """Node ids of cases of one test that show each value of each parameter at least once."""
    shuffled = sorted(cases, key=lambda case: _shuffled(case.node_id))
    sets = [(case.node_id, set(_values(case))) for case in shuffled]
    chosen, seen = [], set[Any]()
    for new in range(max((len(values) for _, values in sets), default=0), 0, -1):
        for node_id, values in sets:
            if len(values - seen) >= new:
                chosen.append(node_id)
                seen |= values
    return chosen if seen else [node_id for node_id, _ in sets]


def dealt(items: Sequence[pytest.Item], number: int, count: int) -> list[pytest.Item]:
    """The items of part `number` of `count`, 1 for the first, in the order that they are given in.

    Cases of one test take about as long as each other, and so are dealt out in turn: no part has
    two more of them than another. Which ones those are does not follow from their parameters'
    order.
    """
    deck = sorted(items, key=lambda item: (_function(item), _shuffled(item.nodeid)))
    chosen = {item.nodeid for item in deck[number - 1 :: count]}
    return [item for item in items if item.nodeid in chosen]


def is_named(node_id: str, arguments: Iterable[str]) -> bool:
    """Whether a command line names this very case, from whichever folder its path begins."""
    file, _, case = node_id.partition("::")
    named = [path.partition("::") for path in arguments]
    return any(one == case and PurePath(path).name == PurePath(file).name for path, _, one in named)


def _function(item: pytest.Item) -> str:
    """The test that an item is a case of."""
    return item.nodeid.partition("[")[0]


def _shuffled(node_id: str) -> int:
    """A key that is as good as random, and the same for each run."""
    return crc32(node_id.encode())


def _values(case: Case) -> Iterable[Any]:
    """The values of one case from each list of parameters and each fixture that has some."""
    given = dict(case.parameters)
    for mark in case.marks:
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        yield tuple(names), tuple([id(given.pop(name, None)) for name in names])
    for name, value in given.items():
        yield name, id(value)
