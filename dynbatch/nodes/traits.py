"""`Traits`: what each new node asks of its type; `_complete` makes a node of its inputs.

A training step makes thousands of nodes, so this is where building a graph takes its time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import FunctionType
from typing import Any

from dynbatch.nodes.node import ROWS, WIDTH, Node, Owner


class Traits:
    """What each new node asks of its type, found by one look-up.

    Args:
        static: names of attributes, as in `Operation`; so are the others that `Operation` has.
        infers_ragged, names_widths: whether the type has rules of its own for these.

    Attributes:
        complete:      `_complete` in a code of the type's own. CPython keeps with a code where
            attributes lie, of one type at a time.
        static_values: the values of a node's static attributes; None if there are none.
    """

    __slots__ = (
        "any_shape", "complete", "infers_ragged", "keeps_rows", "names_widths", "static_values",
        "takes_lengths",
    )  # fmt: skip

    def __init__(
        self,
        any_shape: bool,
        infers_ragged: bool,
        keeps_rows: bool,
        names_widths: bool,
        static: tuple[str, ...],
        takes_lengths: bool,
    ) -> None:
        self.any_shape = any_shape
        self.complete: Callable[..., None] = FunctionType(_complete.__code__.replace(), globals())
        self.infers_ragged = infers_ragged
        self.keeps_rows = keeps_rows
        self.names_widths = names_widths
        self.static_values: Callable[[Any], Any] | None = attrgetter(*static) if static else None
        self.takes_lengths = takes_lengths


def _complete(node: Any, inputs: tuple[Node, ...], graph: Owner | None) -> None:
    """Set what follows from a new node's inputs and attributes, and let its graph own it."""
    node.inputs = inputs
    phase = ragged = 0
    try:
        owner = inputs[0].graph if graph is None else graph
        for x in inputs:
            if x.graph is not owner:
                node._refuse_inputs(owner)
            if x.phase > phase:
                phase = x.phase
            ragged |= x.ragged
    except (AttributeError, IndexError):
        node._refuse_inputs(graph)
        raise
    node.graph = owner
    node.phase = phase
    traits, known, key = node._traits, None, None
    if traits.keeps_rows and inputs:
        first = inputs[0]
        ndim, rows, width = first.ndim, first.rows, first.width
        for x in inputs[1:]:
            if x.rows != rows or x.width != width or x.ndim != ndim:
                break
        else:
            static = None if traits.static_values is None else traits.static_values(node)
            key = traits, static, len(inputs), ndim, width, ragged
            known = owner.widths.get(key)
    if known is not None:
        node.width, node.sig = known
        node.ndim = ndim
        node.rows = rows
        node.ragged = ragged if traits.takes_lengths else ROWS
    else:
        shape = node.infer_shape(*[x.shape for x in inputs])
        ndim = node.ndim = len(shape)
        node.width = width = shape[-1] if ndim else 1
        node.rows = shape[0] if ndim == 2 else 1
        if traits.infers_ragged:
            ragged = node.infer_ragged()
        elif not (inputs and traits.takes_lengths):
            ragged = ROWS
        node.ragged = ragged
        if not width and not (ragged & WIDTH and traits.takes_lengths):
            node._refuse_no_features(f"the value would have shape {shape}")
        node.sig = node.signature()
        if key is not None:
            owner.widths[key] = width, node.sig
    node._block = None
    node.index = owner.add(node)
