"""Gradients of parameters: node types leave them here, and the executor adds them up."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.errors import GraphError
from dynbatch.kernels import arrays, blas
from dynbatch.kernels.rows import add_rows, scatter_rows, sum_rows_by_id, taken_rows
from dynbatch.parameter import Parameter
from dynbatch.recent import free_at_fork
from dynbatch.row_sparse import RowSparse

TOGETHER = 512
"""From this many rows on, more rows do not make a product faster."""


class StepGradients:
    """The gradients that one batch step leaves. Concurrent steps have separate ones.

    Args:
        owned:    parameters whose own gradient buffer this step may write: it comes first.
        deferred: weights that several steps use. Their products are gathered and made at once.
    """

    later = True

    def __init__(self, owned: set[int], deferred: Collection[int]) -> None:
        self._owned = owned
        self._deferred = deferred
        self.dense: list[tuple[Parameter, Array]] = []
        self.sparse: list[tuple[Parameter, RowSparse]] = []
        self.products: list[tuple[Parameter, Array, Array]] = []

    def copy(self) -> StepGradients:
        """A copy of its own, while nothing is left yet."""
        return StepGradients({*self._owned}, self._deferred)

    def take_products(self) -> StepGradients:
        """The deferred products alone, which are then no longer here."""
        taken = StepGradients(set(), ())
        taken.products, self.products = self.products, []
        return taken

    def parameters(self) -> list[Parameter]:
        """The parameters that something was left for; some more than once."""
        left: list[tuple[Parameter, *tuple[object, ...]]]
        left = [*self.dense, *self.sparse, *self.products]
        return [parameter for parameter, *_ in left]

    def outer(self, parameter: Parameter, x: Array, dy: Array) -> None:
        """Add dyᵀ x to a parameter (O, I); x of uint16 are the upper halves of numbers."""
        if parameter.frozen:
            return
        if parameter.uid in self._deferred:
            self.products.append((parameter.here, x, dy))
        else:
            blas.matmul_outer(x, dy, self.buffer(parameter))

    def add(self, parameter: Parameter, gradient: Array) -> None:
        """Add an array of the parameter's shape."""
        if not parameter.frozen:
            arrays.copy(gradient.reshape(parameter.shape), self.buffer(parameter))

    def rows(self, parameter: Parameter, ids: Array, dy: Array) -> None:
        """Add dy (N, D) to rows `ids` (N,), but to frozen ones."""
        if parameter.frozen:
            return
        if parameter.row_is_frozen is not None:
            trained = np.flatnonzero(~parameter.row_is_frozen[ids])
            ids, dy = ids[trained], taken_rows(dy, trained)
        rows, values = sum_rows_by_id(ids, dy)
        shape = (parameter.shape[0], parameter.shape[1])
        self.sparse.append((parameter.here, RowSparse(rows, values, shape)))

    def buffer(self, parameter: Parameter) -> Array:
        """An array of the parameter's shape that the caller overwrites with its gradient."""
        parameter = parameter.here
        if parameter.uid in self._owned:
            self._owned.discard(parameter.uid)
            if parameter.grad is not None:  # since the run was planned
                raise _two_at_once(parameter)
            array = parameter.gradient_buffer()
        else:
            array = parameter.empty_like()
        self.dense.append((parameter, array))
        return array


class Claim:
    """Parameters whose gradients one backward is adding to, to the exclusion of others."""

    def __init__(self) -> None:
        self._uids: list[int] = []
        self._self = ref(self)

    def take(self, parameters: Iterable[Parameter]) -> None:
        """Claim parameters, all or none; in a dry run, which leaves them alone, none.

        Raises:
            GraphError: a backward in another thread has not finished with one of them.
        """
        distinct = {p.uid: p for p in parameters if p.here is p}
        with _claiming:
            for uid, parameter in distinct.items():
                held = _claims.get(uid)  # which its owner may give up at any moment
                if held is not None and held() is not None:
                    raise _two_at_once(parameter)
            self._uids = list(distinct)  # before the claim, should an interrupt come in between
            _claims.update(dict.fromkeys(distinct, self._self))

    def release(self) -> None:
        for uid in self._uids:
            if _claims.get(uid) is self._self:
                del _claims[uid]
        self._uids = []  # last: until then it can be repeated


_claims: dict[int, ref[Claim]] = {}  # by the parameter's uid; of dead ones for a lost graph
_claiming = free_at_fork(threading.Lock())


def _two_at_once(parameter: Parameter) -> GraphError:
    return GraphError(
        f"backward: another thread is adding to the gradient of {parameter.name!r}.\n"
        "  rule: a parameter is trained by one thread at a time; several may read it\n"
        "  fix:  give each thread a model of its own, or take turns (docs/guides/threads.md)"
    )


class StashedGradients:
    """Gradients from before a run that adds some of its own before the loss is known.

    It adds them to copies, in the order in which it would add them to the gradients themselves.
    """

    def __init__(self) -> None:
        self._states: list[tuple[Parameter, Any]] = []

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for parameter, _ in self._states]

    def put(self, parameters: Iterable[Parameter]) -> None:
        distinct = {parameter.uid: parameter.here for parameter in parameters}
        self._states = [(p, p.gradient_state) for p in distinct.values()]
        for parameter, (grad, _) in self._states:
            parameter.put_aside()
            if isinstance(grad, RowSparse):  # whose arrays nobody writes to
                parameter.grad = grad
            elif grad is not None:
                parameter.grad = parameter.empty_like()
                arrays.copy(grad, parameter.grad)

    def put_back(self) -> None:
        for parameter, before in self._states:
            parameter.put_back(before)
        self._states = []

    def replace(self) -> None:
        """Replace stashed gradients by the sums, in their memory; nothing can be restored then."""
        states, self._states = self._states, []
        for parameter, before in states:
            total = parameter.grad
            parameter.put_back(before)
            grad = parameter.grad
            if isinstance(grad, RowSparse | None) or isinstance(total, RowSparse | None):
                parameter.grad = total
            else:
                arrays.copy(total, grad)


def commit(steps: Iterable[StepGradients], room: Array | None = None) -> Array | None:
    """Add everything the steps left to `parameter.grad`, in the order of the steps.

    Args:
        room: used for rows that are brought together, if they fit.

    Returns:
        the room that was used, which a GPU may still read.
    """
    products: dict[int, tuple[Parameter, list[Array], list[Array]]] = {}
    steps = list(steps)
    for step in steps:
        for parameter, array in step.dense:
            _add(parameter, array)
        for parameter, x, dy in step.products:
            _, xs, dys = products.setdefault(parameter.uid, (parameter, [], []))
            xs.append(x)
            dys.append(dy)
    room = _room([(xs, dys) for _, xs, dys in products.values()], room)
    for parameter, xs, dys in products.values():
        _add_products(parameter, xs, dys, room)
    for step in steps:
        for parameter, sparse in step.sparse:
            _add(parameter, sparse)
    left = [parameter for step in steps for parameter in step.parameters()]
    for parameter in {p.uid: p for p in left if p.row_is_frozen is not None}.values():
        _clear_frozen_rows(parameter)
    return room


def _clear_frozen_rows(parameter: Parameter) -> None:
    """Set the frozen rows of a dense gradient to 0; a sparse one has none of them."""
    grad, trained = parameter.grad, parameter.trained_rows
    if trained is not None and grad is not None and not isinstance(grad, RowSparse):
        scatter_rows(taken_rows(grad, trained), trained, grad)


def _room(
    products: Sequence[tuple[Sequence[Array], Sequence[Array]]], room: Array | None
) -> Array | None:
    """Room for the rows of the largest group of steps that are brought together; None for none.

    All groups use it, one after the other. On a GPU arrays of their own would lie side by side
    until the queue is flushed, as many as all steps' rows.
    """
    sizes = [
        (xs[0].shape[1] + dys[0].shape[1]) * sum([len(x) for x in xs[first:end]])
        for xs, dys in products
        for first, end in groups([len(x) for x in xs])
        if end - first > 1
    ]
    if not sizes or (room is not None and room.size >= max(sizes)):
        return room
    like = products[0][0][0]
    made: Array = device_of(like).xp.empty(max(sizes), like.dtype)
    return made


def _add_products(
    parameter: Parameter, xs: Sequence[Array], dys: Sequence[Array], room: Array | None
) -> None:
    """Add Σ dyᵀ x. Few rows are brought together first, since products of few rows are slow.

    Args:
        room: for these rows.
    """
    grad = parameter.grad
    adds = grad is not None and not isinstance(grad, RowSparse)
    out: Array = grad if adds else parameter.gradient_buffer()  # type: ignore[assignment]
    for k, (first, end) in enumerate(groups([len(x) for x in xs])):
        x, dy = xs[first], dys[first]
        if end - first > 1:
            assert room is not None
            x, dy = _together(xs[first:end], dys[first:end], room)
        blas.matmul_outer(x, dy, out, add=adds or k > 0)
    if not adds:
        _add(parameter, out)


def _together(xs: Sequence[Array], dys: Sequence[Array], room: Array) -> Iterator[Array]:
    """The rows of several steps as one x and one dy, one behind the other in the room."""
    start = 0
    for some in (xs, dys):
        rows, width = sum([len(each) for each in some]), some[0].shape[1]
        end = start + rows * width
        yield arrays.concatenate(some, room[start:end].reshape(rows, width))
        start = end


def groups(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and end of neighbours with `TOGETHER` rows or more; what is left joins the last.

    The groups of one of them are that one again.
    """
    ranges: list[tuple[int, int]] = []
    first = together = 0
    for end, count in enumerate(rows, 1):
        together += count
        if together >= TOGETHER:
            ranges.append((first, end))
            first, together = end, 0
    if first < len(rows):
        ranges.append((ranges.pop()[0] if ranges else 0, len(rows)))
    return ranges


def _add(parameter: Parameter, gradient: Array | RowSparse) -> None:
    grad = parameter.grad
    if grad is None:
        parameter.grad = gradient
    elif isinstance(gradient, RowSparse):
        if isinstance(grad, RowSparse):
            parameter.grad = grad.plus(gradient)
        else:
            add_rows(gradient.values, gradient.rows, grad)
    elif isinstance(grad, RowSparse):
        add_rows(grad.values, grad.rows, gradient)
        parameter.grad = gradient
    else:
        arrays.accumulate(gradient, grad)
