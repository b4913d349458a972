"""Threads share the work of a C function."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dynbatch.kernels.c.runtime.library import Library
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.workers import workers

# Elements that take C several times as long as handing work to a thread.
WORTH_A_THREAD = 1 << 17

_library = Library("team.c")
_SCALAR = np.dtype(np.float32)  # the file has none


def share_rows(
    function: Any, rows: int, width: int, *arguments: Any, least: int = WORTH_A_THREAD
) -> None:
    """Call `function(first, last, *arguments)` for ranges of the rows; threads share them.

    Args:
        width: elements of a row, or about so many.
        least: elements that are worth a thread.
    """
    spans = parallel.shards(rows, -(-least // max(1, width)))
    share(function, [(*span, *arguments) for span in spans])


def share(function: Any, parts: Sequence[Sequence[Any]]) -> None:
    """Call a C function once with the arguments of each part; threads share them.

    Workers take parts without the interpreter.
    """
    threads = min(len(parts), parallel.available())
    found = team() if threads > 1 else None
    if found is None or not hasattr(function, "packed"):
        parallel.run([partial(function, *part) for part in parts])
        return
    if workers.wait is not found.serve:
        workers.wait_in(found.serve, found.call, found.prepare)
    workers.start(threads - 1)
    pack, size = function.packing.pack, function.packing.size
    rows = [pack(*[0 if x is None else x for x in part]) for part in parts]
    found.share(function.packed, b"".join(rows), size, len(parts), threads - 1)


def team() -> Any:
    """The functions of team.c; None where C is not used."""
    return _library.functions(_SCALAR)
