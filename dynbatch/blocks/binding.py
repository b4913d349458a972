"""`bind`: what the attributes of a block's operators follow from, found by comparing its traces."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dynbatch.backend import Array
from dynbatch.blocks.given_arrays import Recipe
from dynbatch.blocks.operators import (
    STREAM,
    BlockOperator,
    Coefficients,
    Given,
    Site,
    Sized,
    Told,
    affine,
)
from dynbatch.blocks.sizes import Fit, integers_of, skeleton
from dynbatch.blocks.trace import BlockTrace
from dynbatch.compiler.traced import same
from dynbatch.errors import DynbatchError
from dynbatch.nodes.node import WIDTH, Shape
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.sources import Lookup


class ArraysAlike(Exception):
    """The arrays of a call do not tell which of them an operator takes."""

    def __init__(self) -> None:
        super().__init__("its arrays are alike in this sentence, and in all that can be tried")


class TakenArrays:
    """The operators that take arrays of a call, or of results of NumPy from them.

    Args:
        operators: of the block; their rows are bound while arrays are added.
        argument_rows: of the node arguments that operators read, by -1 - k.

    Attributes:
        sites: for each operator that takes one its position, its node, and the array's number.
    """

    def __init__(
        self, operators: Sequence[BlockOperator], argument_rows: Mapping[int, Coefficients]
    ) -> None:
        self.sites: list[tuple[int, Operation, int]] = []
        self._operators = operators
        self._argument_rows = argument_rows
        self._recipes: dict[int, Recipe] = {}
        self._shapes: dict[int, tuple[Coefficients, ...] | None] = {}

    def of(
        self, free: Sequence[int], arrays: Sequence[Array], shapes: Mapping[int, Shape]
    ) -> list[tuple[Any, ...]] | None:
        """Attributes that operators make of their arrays; None if an array has an unexpected shape.

        Args:
            shapes: that a trace at the call's sizes told.
        """
        if self._recipes:
            taken = dict(enumerate(arrays))
            for number, recipe in self._recipes.items():
                taken[number] = recipe.on(taken)
            for number, shape in self._shapes.items():
                expected = shapes.get(number)
                if shape is not None:
                    expected = tuple([affine(length, free) for length in shape])
                if taken[number].shape != expected:
                    return None
            return [node.given(taken[number]) for _, node, number in self.sites]
        return [node.given(arrays[number]) for _, node, number in self.sites]

    def suit(self, free: Sequence[int], told: Told) -> bool:
        """Whether what operators make of the arrays suits a call's sizes, as ids of rows must."""
        try:
            for (position, node, _), values in zip(self.sites, told.given, strict=True):
                if node.checks_given:
                    read = self._operators[position].inputs
                    node.check_given(values, [self._rows(x, free, told) for x in (position, *read)])
        except DynbatchError:
            return False
        return True

    def _rows(self, position: int, free: Sequence[int], told: Told) -> int:
        """The rows of an operator's value, or of the node argument k at -1 - k."""
        if position < 0:
            return affine(self._argument_rows[position], free)
        return self._operators[position].size_at(free, told, position)[0]

    @property
    def are_looked_up(self) -> bool:
        """Whether they are ids of rows of tables, as they were given."""
        return not self._recipes and all([isinstance(node, Lookup) for _, node, _ in self.sites])

    def seen_in(self, trace: BlockTrace) -> list[tuple[Any, ...]]:
        return [trace.operators[position].given_values() for position, _, _ in self.sites]

    def shapes_in(self, trace: BlockTrace) -> dict[int, Shape]:
        """The shapes in a trace of the arrays whose shapes are no affine functions of sizes."""
        arrays = dict(enumerate(trace.arrays.arrays))
        return {n: arrays[n].shape for n, s in self._shapes.items() if s is None and n in arrays}

    def holds_in(self, trace: BlockTrace) -> bool:
        """Whether the operators of a trace take the same arrays, and NumPy makes these alike."""
        log = trace.arrays
        made = all(
            [
                number < len(log.recipes) and recipe.is_like(log.recipes[number])
                for number, recipe in self._recipes.items()
            ]
        )
        return made and all(
            [
                _takes(trace.operators[position], log.arrays[number])
                for position, _, number in self.sites
            ]
        )

    def add(
        self, fit: Fit, position: int, traces: Sequence[BlockTrace], again: Sequence[BlockTrace]
    ) -> int | None:
        """The site of an operator that takes an array; None if it takes none.

        Raises:
            ArraysAlike: it may take one of several.
        """
        every = (*traces, *again)
        number = _array_of([trace.operators[position] for trace in every], every)
        if number is None:
            return None
        log = traces[0].arrays
        if log.recipes[number] is not None and number not in self._shapes:
            shapes = [trace.arrays.arrays[number].shape for trace in every]
            if any([len(shape) != len(shapes[0]) for shape in shapes]) or any(
                [shape != shapes[0] for shape in shapes[len(traces) :]]
            ):
                return None
            fitted = [fit.coefficients(sizes) for sizes in zip(*shapes[: len(traces)], strict=True)]
            known = [c for c in fitted if c is not None]
            self._shapes[number] = tuple(known) if len(known) == len(fitted) else None
            self._recipes |= log.recipes_of(number)
            self._recipes = dict(sorted(self._recipes.items()))
        self.sites.append((position, traces[0].operators[position], number))
        return len(self.sites) - 1


def _array_of(nodes: Sequence[Operation], traces: Sequence[BlockTrace]) -> int | None:
    """The number of the array that an operator takes in all traces; None if it takes none."""
    logs = [trace.arrays for trace in traces]
    alike: list[int] = []
    for number, recipe in enumerate(logs[0].recipes):
        if recipe is not None:
            # A function may make more arrays in one trace than in another: only common ones count.
            if any([number >= len(log.recipes) for log in logs]):
                break
            if not all([recipe.is_like(log.recipes[number]) for log in logs]):
                continue
            # Equal recipes make equal arrays, so either would do: that is not an ambiguity.
            if any([recipe.is_like(logs[0].recipes[k]) for k in alike]):
                continue
        if all([_takes(node, log.arrays[number]) for node, log in zip(nodes, logs, strict=True)]):
            alike.append(number)
    if len(alike) > 1:
        raise ArraysAlike
    return alike[0] if alike else None


def _takes(node: Operation, array: Array) -> bool:
    try:
        return same(node.given(array), node.given_values())
    except DynbatchError:
        return False


def bind(
    operators: Sequence[BlockOperator],
    fit: Fit,
    traces: Sequence[BlockTrace],
    again: Sequence[BlockTrace],
) -> TakenArrays:
    """Note at each operator what its rows, width and attributes follow from.

    Args:
        traces: at the points of the fit.
        again:  at the first of them, with other arrays.

    Raises:
        ArraysAlike: an operator may take one of several arrays, or an array or a constant.
    """
    taken = TakenArrays(operators, _argument_rows(operators, fit, traces))
    numbers = itertools.count()
    untold: set[int] = set()  # operators whose rows only a trace at the call's sizes tells
    for k, op in enumerate(operators):
        nodes = [trace.operators[k] for trace in (*traces, *again)]
        given_names = type(op.node).given_attributes if again else ()
        site = taken.add(fit, k, traces, again) if given_names else None
        follows = site is not None or op.node.follows_sizes()
        follows = follows and untold.isdisjoint(op.inputs)
        # Reshaped parameters, say, whose shape no size changes.
        shared = all([x >= 0 and operators[x].is_shared for x in op.inputs])
        is_fixed = shared and len({node.shape for node in nodes}) == 1
        _bind_sizes(op, fit, nodes, len(traces), follows or is_fixed)
        if op.rows is None or op.width is None:
            untold.add(k)
        tables = [node.attributes() for node in nodes]
        is_given = False
        for name, value in tables[0].items():
            values = [table[name] for table in tables]
            if name == STREAM:
                op.bound[name] = Site(next(numbers))
            elif isinstance(value, Operation):
                continue  # what a folded node stands for
            elif all([same(value, other) for other in values[1:]]):
                op.constants.append((name, value))
            elif site is not None and name in given_names:
                op.bound[name] = Given(site, given_names.index(name))
                is_given = True
            else:
                op.bound[name] = None
                if follows:
                    op.bound[name] = _sized(fit, values[: len(traces)], values[len(traces) :])
        if site is not None and not is_given:
            raise ArraysAlike  # an array that never differs, or a constant?
        fixed = all([c is not None and not any(c[:-1]) for c in (op.rows, op.width)])
        op.is_shared = shared and not op.bound and fixed
    return taken


def _argument_rows(
    operators: Sequence[BlockOperator], fit: Fit, traces: Sequence[BlockTrace]
) -> dict[int, Coefficients]:
    """The rows of the node arguments, by -1 - k, as functions of the free sizes."""
    rows_of: dict[int, Coefficients] = {}
    for k, op in enumerate(operators):
        for number, x in enumerate(op.inputs):
            if x < 0 and x not in rows_of:
                rows = fit.coefficients(
                    [trace.operators[k].inputs[number].rows for trace in traces]
                )
                assert rows is not None  # they are one of the sizes, or 1
                rows_of[x] = rows
    return rows_of


def _bind_sizes(
    op: BlockOperator, fit: Fit, nodes: Sequence[Operation], count: int, follows: bool
) -> None:
    """Bind rows and width, of nodes of which the first `count` are of different sizes."""
    # The first nodes differ in sizes, the others in contents: a size that changes with the contents
    # does not follow from sizes.
    of_sizes, of_data = nodes[:count], nodes[count:]
    if op.node.ndim < 2:
        op.rows = fit.constant(1)
    elif follows and all([node.rows == nodes[0].rows for node in of_data]):
        op.rows = fit.coefficients([node.rows for node in of_sizes])
    if not op.node.ragged & WIDTH and all([n.width == op.node.width for n in nodes]):
        op.width = fit.constant(op.node.width)
    elif follows and all([node.width == nodes[0].width for node in of_data]):
        op.width = fit.coefficients([node.width for node in of_sizes])


def _sized(fit: Fit, values: Sequence[Any], again: Sequence[Any]) -> Sized | None:
    leaves = [integers_of(value) for value in values]
    if None in leaves or not all([same(values[0], value) for value in again]):
        return None
    forms = [skeleton(value) for value in values]
    if not all([same(forms[0], form) for form in forms]):
        return None
    fitted = [fit.coefficients(column) for column in zip(*leaves, strict=True)]
    if None in fitted:
        return None
    return Sized(forms[0], tuple(c for c in fitted if c is not None))
