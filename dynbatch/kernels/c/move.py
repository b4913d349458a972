"""`kernels.move` in C: all moves of a table in one call, shared evenly between the threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.c.runtime.arrays import address, is_packed
from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.move import merge, num_elements
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.tasks import share_rows

# Elements that a thread copies in about 10 µs.
WORTH_A_THREAD = 1 << 16

_library = Library("move.c")


def run(source: Array, target: Array, moves: Array, add: bool = False) -> Any:
    functions = _library.functions(target.dtype)
    if functions is None or not is_packed(source, target):
        return NotImplemented
    elements = num_elements(moves)
    places = address(source), address(target), add
    if add and elements >= 2 * WORTH_A_THREAD and parallel.available() > 1:
        # Two moves may add to one place: threads share one move after the other.
        for one in merge(moves)[:, None]:
            _share(functions.move, num_elements(one), one, *places)
    else:
        _share(functions.move, elements, moves, *places)
    return elements * target.itemsize


def _share(function: Any, elements: int, moves: Array, *places: object) -> None:
    moves = np.ascontiguousarray(moves)
    share_rows(
        function, elements, 1, len(moves), address(moves), *places, least=WORTH_A_THREAD,
        alive=(moves,),
    )  # fmt: skip
