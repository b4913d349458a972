"""Parts of a value by Python's keys: slices, single rows, one element."""

from __future__ import annotations

import builtins
import operator
from math import prod
from typing import Any, Never

import numpy as np

from dynbatch.errors import DtypeError
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.node import Node
from dynbatch.nodes.shape.axes import TOKENS, axis
from dynbatch.nodes.shape.gather import gather_rows
from dynbatch.nodes.shape.reshape import reshape, unsqueeze
from dynbatch.nodes.shape.row import row_of
from dynbatch.nodes.shape.slice import Part, Slice
from dynbatch.nodes.syntax.registry import FUNCTIONS


def slice(
    x: Node,
    start: int | None = None,
    stop: int | None = None,
    dim: int = -1,
    step: int = 1,
    **habits: Never,
) -> Node:
    """x from `start` to before `stop` along `dim`; negative numbers count from the end.

    `x[start:stop]` is the same for a sentence's tokens and a vector's features, `x[:, start:stop]`
    for a sentence's features. Only tokens have a step.

    Raises:
        ShapeError: x has no such dim, or no feature would be left.
    """
    part = builtins.slice(start, stop, step)
    if axis("slice", x, dim, habits) == TOKENS:
        return Slice(x, tokens=part, features=None)
    return Slice(x, tokens=None, features=part)


def pick(x: Node, id: int) -> Node:
    """One row of a sentence as a vector, or one element of a vector as a scalar: `x[id]`.

    Raises:
        VocabularyError: `id` is out of range.
    """
    x = node_of("pick", x)
    return getitem(x, _index(id, id))


def getitem(x: Node, key: Any) -> Node:
    """`x[key]`: an index or slice of tokens (of features, for a vector), or ids of them.

    `x[tokens, features]` selects both. A mask, T booleans, selects the rows where it is True; of a
    vector, ids and a mask select elements.
    `...` stands for the remaining dimensions, and None gives a vector one more dimension of size 1:
    `x[..., None]` is `F.unsqueeze(x, -1)`.

    Raises:
        VocabularyError: an index is out of range.
        ShapeError:      x is a scalar, has fewer dimensions than the key, or another length than
                         the mask.
        DtypeError:      the key is neither index, slice, ids, mask, nor a pair of the first two.
    """
    if x.ndim > 2:
        return _along_first(x, key)
    if isinstance(key, list | np.ndarray) and np.ndim(key) == 1:
        ids = _ids_of(x, key)
        if x.ndim != 1:
            return gather_rows(x, ids)
        return reshape(gather_rows(unsqueeze(x, 1), ids), (len(ids),))
    if key is None or key is Ellipsis or isinstance(key, tuple):
        return _parts(x, key if isinstance(key, tuple) else (key,))
    if x.ndim == 2:
        token = _part(key)
        if isinstance(token, int) and -x.rows <= token < x.rows:
            return row_of(x, token % x.rows)
        return Slice(x, tokens=token, features=None)
    return Slice(x, tokens=None, features=_part(key))


def _along_first(x: Node, key: Any) -> Node:
    """`x[key]` of more than two dimensions: an index, a slice, ids or a mask of the first one."""
    if key is None or key is Ellipsis or isinstance(key, tuple):
        x.refuse(
            f"a key {key!r} for a value of shape {x.shape}",
            "an index, a slice, ids or a mask, along the first dimension",
            "F.permute another dimension to the front; F.unsqueeze adds one",
        )
    part = getitem(reshape(x, (x.shape[0], prod(x.shape[1:]))), key)
    return reshape(part, (*part.shape[:-1], *x.shape[1:]))


def _parts(x: Node, key: tuple[Any, ...]) -> Node:
    """`x[key]` for a key of several parts: one for each dimension, `...` and None."""
    rest = [k for k, part in enumerate(key) if part is Ellipsis]
    more = [k for k, part in enumerate(key) if part is None]
    if len(rest) > 1 or len(more) > 1 or len(key) - len(rest) - len(more) > 2:
        raise _not_a_key(key)
    if rest:
        whole = [builtins.slice(None)] * (x.ndim - (len(key) - 1 - len(more)))
        return _parts(x, (*key[: rest[0]], *whole, *key[rest[0] + 1 :]))
    if more:
        before, behind = key[: more[0]], key[more[0] + 1 :]
        kept = [part for part in before if isinstance(part, builtins.slice)]
        return unsqueeze(_parts(x, (*before, *behind)), len(kept))
    if len(key) == 2:
        return Slice(x, tokens=_part(key[0]), features=_part(key[1]))
    return getitem(x, key[0]) if key else x


def _ids_of(x: Node, key: Any) -> Any:
    """Ids of rows, from ids or from a mask."""
    mask = np.asarray(key)
    if mask.dtype != bool:
        return key
    if not x.ndim or mask.size != x.shape[0]:
        x.refuse(
            f"a mask of {mask.size} for a value of shape {x.shape}",
            "a mask has one boolean for each token of a matrix (T, D), or each element of a vector",
            "give a mask of this sentence's own length; select features with slices",
        )
    return np.flatnonzero(mask)


def _part(key: Any) -> Part:
    if not isinstance(key, builtins.slice):
        return _index(key, key)
    for bound in (key.start, key.stop, key.step):
        if bound is not None:
            _index(bound, key)
    if key.step == 0:
        raise _not_a_key(key)
    return key


def _index(part: Any, key: Any) -> int:
    if not isinstance(part, bool | np.bool_):
        try:
            return operator.index(part)
        except TypeError:
            pass
    raise _not_a_key(key)


def _not_a_key(key: Any) -> DtypeError:
    fix = "x[3], x[2:5], x[:, :64] or x[[0, 2, 2]]; a slice's step is not 0"
    if isinstance(key, Node):
        fix = "a key must be known when x is indexed: x[key.value.astype(int)] runs the graph"
    return DtypeError.at_caller(
        f"a node is indexed by an integer, a slice or a list of ids, not {key!r}.\n  fix:  {fix}"
    )


FUNCTIONS.update(getitem=getitem)
