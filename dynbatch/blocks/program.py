"""`BlockProgram`: the operators of a block, traced at several sizes, for sentences of any size.

What differs between the traces is bound to what it follows from: the sizes of the arguments, one of
their arrays, a random stream. What follows from nothing so simple is read from a trace at the sizes
of the call, once for each of them; or from a trace of each call, where it follows from its arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np

from dynbatch.backend import Array
from dynbatch.blocks.binding import bind
from dynbatch.blocks.operators import (
    NOTHING,
    STREAM,
    BlockOperator,
    Given,
    Sized,
    Told,
    affine,
    why_apart,
)
from dynbatch.blocks.sizes import (
    Fit,
    Pattern,
    Sizes,
    bases,
    filled,
    free_positions,
    keeps,
    points_for,
)
from dynbatch.blocks.trace import BlockTrace, TraceMaker
from dynbatch.compiler.traced import Reads, same
from dynbatch.nodes.shape.structure import Structural
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter

_uids = itertools.count()

SHARED = "shared by all sentences"
"""Begins the signature of an operator that runs once a mini-batch."""


class NotOneProgram(Exception):
    """A block builds other operators for other sizes; the text says how."""


class BlockProgram:
    """The operators that a block was traced to.

    Args:
        maker:   traces the block for the call at hand, which the program does not keep.
        pattern: which sizes vary.
        actual:  the sizes of the call at hand.
        careful: whether other sizes than those that are tried may give other operators.
        reads:   what the traces read from its parameters; it fills while they are made.
        kind:    the type of its calls.

    Raises:
        NotOneProgram: what it builds differs with sizes, or it fails at those that were tried.
    """

    def __init__(
        self, maker: TraceMaker, pattern: Pattern, actual: Sizes, careful: bool, reads: Reads,
        kind: type,
    ) -> None:  # fmt: skip
        self.uid = next(_uids)
        self._kind = kind
        self.pattern = pattern
        self.free = free_positions(pattern)
        self.reads = reads
        self.plans: dict[Any, Any] = {}  # of its operators, by policy and results reached
        self.resting: dict[Any, Any] = {}  # runs of its calls that may come again
        self._careful = careful
        points, traces, again = _traces(maker, pattern, [actual[k] for k in self.free])
        first = traces[0]
        self.returns_tuple = first.returns_tuple
        self.results = first.results
        self.operators = [
            BlockOperator(node, inputs)
            for node, inputs in zip(first.operators, first.inputs, strict=True)
        ]
        for trace in (*traces[1:], *again):
            if (difference := self._differs(trace)) is not None:
                raise NotOneProgram(f"it builds {difference}")
        self._taken = bind(self.operators, Fit(points), traces, again)
        self.is_random = any([STREAM in op.bound for op in self.operators])
        unbound = [None in (op.rows, op.width, *op.bound.values()) for op in self.operators]
        self._retraces = any(unbound) or bool(self._taken.shapes_in(first))
        told = [self._read(trace, points[0]) for trace in (first, *again)]
        known, *others = [None if x is None else (x.sizes, x.values) for x in told]
        self.by_data = maker.is_touched or not all([x and same(x, known) for x in others])
        self._unsafe = self._sizes_unlike(maker, points[0])
        self._known: dict[Sizes, Told | None] = {}
        self._settle()

    def _settle(self) -> None:
        """Set what follows from the operators and the results."""
        computed = [number for number, position in enumerate(self.results) if position >= 0]
        self.main = computed[0] if computed else -1
        self.sig = intern_signature((self._kind, self.uid))
        self.signatures = tuple(
            [
                intern_signature((SHARED, op.node.sig)) if op.is_shared else op.node.sig
                for op in self.operators
            ]
        )
        self.edges = tuple([tuple([k for k in op.inputs if k >= 0]) for op in self.operators])

    def changed(self, operators: list[BlockOperator], results: tuple[int, ...]) -> Self:
        """A program of other operators and results, for the same calls."""
        other = copy(self)
        for name in ("all_parameters", "follows_arrays"):
            vars(other).pop(name, None)
        other.uid, other.plans, other.resting = next(_uids), {}, {}
        other.operators, other.results = operators, results
        other._settle()
        return other

    @cached_property
    def all_parameters(self) -> tuple[Parameter, ...]:
        by_uid = {p.uid: p for op in self.operators for p in op.node.all_parameters()}
        return tuple(by_uid.values())

    @cached_property
    def follows_arrays(self) -> bool:
        """Whether numbers in an array of the sentence may say where an operator has its values."""
        return any(
            [
                not op.node.is_built_in
                or (
                    isinstance(op.node, Structural)
                    and any([isinstance(bound, Given) for bound in op.bound.values()])
                )
                for op in self.operators
            ]
        )

    def takes(self, sizes: Sizes) -> bool:
        return keeps(self.pattern, sizes)

    def free_of(self, sizes: Sizes) -> Sizes:
        return tuple([sizes[k] for k in self.free])

    # How a call differs from the traces -----------------------------------------------------------

    @property
    def is_general(self) -> bool:
        """Whether it is known to hold for any sizes and arrays."""
        return not (self.by_data or self._retraces or self._careful)

    def needs_trace(self, sizes: Sizes) -> bool:
        """Whether a call of these sizes must be traced at them, or looked up."""
        if not self.is_general:
            return True
        return bool(self._unsafe) and any([sizes[self.free[k]] == 0 for k in self._unsafe])

    def given(self, free: Sizes, arrays: Sequence[Array], known: Told = NOTHING) -> Told | None:
        """Values from a call's arrays, checked; None where it makes arrays of unexpected shapes.

        None too where they do not suit its sizes: the function itself will raise that.

        Args:
            known: what a trace at these sizes told.

        Raises:
            DynbatchError: what the operators raise that take an array.
        """
        if not self._taken.sites:
            return known
        taken = self._taken.of(free, arrays, known.shapes)
        if taken is None:
            return None
        told = known._replace(given=taken)
        return told if self._taken.suit(free, told) else None

    def given_to_all(self, ids: Array, lengths: Array) -> list[list[Sequence[Any]]]:
        """Values that operators make of the ids of many sentences: of each, or of all together.

        Args:
            ids:     the calls' only array, of all sentences.
            lengths: ids of each.
        """
        if self._taken.are_looked_up:
            return [[[made] for made in site] for site in self._taken.of((), [ids], {}) or ()]
        of_each = []
        ends, last = np.cumsum(lengths).tolist(), len(self.pattern) - 1
        for end, length in zip(ends, lengths.tolist(), strict=True):
            free = self.free_of((*[0] * last, length))
            told = self.given(free, [ids[end - length : end]])
            assert told is not None
            of_each.append(told.given)
        return [list(zip(*site, strict=True)) for site in zip(*of_each, strict=True)]

    def traced(self, maker: TraceMaker, sizes: Sizes, arrays: Sequence[Array]) -> Told | None:
        """Values from a trace at the call's sizes; None if it builds other operators."""
        free = self.free_of(sizes)
        if self.by_data or sizes not in self._known:
            try:
                trace = maker.on(sizes, arrays)
            except Exception:
                return None  # the function itself will raise it
            told = self._read(trace, free)
            if not self.by_data:
                if told and not self._takes_alike(maker, trace, sizes):
                    told = None
                self._known[sizes] = told
        else:
            told = self._known[sizes]
        if told is None or self.by_data:
            return told
        return self.given(free, arrays, told)

    def _takes_alike(self, maker: TraceMaker, trace: BlockTrace, sizes: Sizes) -> bool:
        """Whether operators take the same arrays at these sizes: in this trace, and in another."""
        try:  # arrays that are equal in this sentence may differ in the next
            other = maker.at(sizes)
        except Exception:  # whatever the function raises at values that it was not given
            other = trace
        return all([self._differs(t) is None and self._taken.holds_in(t) for t in (trace, other)])

    def _read(self, trace: BlockTrace, free: Sizes) -> Told | None:
        """Values from a trace; None if it differs from the program."""
        if self._differs(trace) is not None:
            return None
        told = Told(self._taken.seen_in(trace), {}, {}, self._taken.shapes_in(trace))
        for k, (op, node) in enumerate(zip(self.operators, trace.operators, strict=True)):
            attributes = node.attributes()
            expected = dict(op.constants)
            for name, bound in op.bound.items():
                if bound is None:
                    told.values[k, name] = attributes[name]
                elif isinstance(bound, Sized):
                    expected[name] = bound.at(free)
            if not all([same(attributes[name], value) for name, value in expected.items()]):
                return None
            if op.rows is None or op.width is None:
                told.sizes[k] = node.rows, node.width
            elif (affine(op.rows, free), affine(op.width, free)) != (node.rows, node.width):
                return None
        return told

    def _differs(self, trace: BlockTrace) -> str | None:
        """The difference between a trace and the program; None if there is none."""
        mine = [(op.node, op.inputs) for op in self.operators]
        theirs = list(zip(trace.operators, trace.inputs, strict=True))
        for (a, read), (b, other) in zip(mine, theirs, strict=False):
            if (type(a), a.ndim, a.ragged, read) != (type(b), b.ndim, b.ragged, other):
                return f"{type(a).__name__} at some sizes, {type(b).__name__} at others"
            if a.sig != b.sig:
                return why_apart(a, b)
        if len(mine) != len(theirs):
            return f"{len(mine)} operators at some sizes, {len(theirs)} at others"
        same_results = (self.results, self.returns_tuple) == (trace.results, trace.returns_tuple)
        return None if same_results else "other results at other sizes"

    def _sizes_unlike(self, maker: TraceMaker, point: Sequence[int]) -> frozenset[int]:
        """The free sizes at whose 0 the block fails, or builds other operators."""
        unlike: set[int] = set()
        count = len(self.free)
        alone = [{k} for k in range(count)]
        for zeros in [*alone, set(range(count))] if count > 1 else alone:
            values = [0 if k in zeros else n for k, n in enumerate(point)]
            try:
                trace = maker.at(filled(self.pattern, values))
            except Exception:  # whatever the function raises without rows
                trace = None
            if trace is None or self._read(trace, tuple(values)) is None:
                unlike |= zeros
        return frozenset(unlike)


def _traces(
    maker: TraceMaker, pattern: Pattern, actual: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[BlockTrace], list[BlockTrace]]:
    """The points of a `Fit`, traces at them, and at the first of them with other arrays.

    Sizes are near the call's where small ones fail; arrays hold the call's own values where smaller
    ones fail.
    """
    count = len(actual)
    error: Exception | None = None
    for least in (1, 0, None) if maker.arguments.arrays else (None,):
        maker.least = least
        for base, others in bases(actual):
            points = points_for(count, base, others)
            try:
                tried = [*points, points[0]] if maker.arguments.arrays else points
                traces = [maker.at(filled(pattern, point)) for point in tried]
                return points, traces[: len(points)], traces[len(points) :]
            except Exception as raised:  # whatever the function raises where it was not asked
                error = error or raised
    raise NotOneProgram(f"at other sizes it fails: {str(error).splitlines()[0]}") from error
