"""Threads share the rows of a C function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dynbatch.kernels.runtime import parallel

# Elements that take C about as long as handing work to a thread, several times: 40 µs.
WORTH_A_THREAD = 1 << 17


def share_rows(
    function: Callable[..., None], rows: int, width: int, *arguments: object,
    least: int = WORTH_A_THREAD,
) -> None:  # fmt: skip
    """Call `function(first, last, *arguments)` for ranges of the rows, one call a thread.

    Args:
        width: elements of a row, or about so many.
        least: elements that are worth a thread.
    """
    spans = parallel.shards(rows, -(-least // max(1, width)))
    if len(spans) == 1:
        function(*spans[0], *arguments)
    else:
        parallel.run([partial(function, *span, *arguments) for span in spans])
