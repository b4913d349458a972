"""`WithinLimit`: what a form would do to train within a memory limit, as it is planned."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from dynbatch.padding.forms import megabytes

_WIDTH = 80


@dataclass(frozen=True)
class WithinLimit:
    """A form's mini-batches within a memory limit, planned and not run.

    The limit is for the arena, as that of `graph.backward`; index tables come on top.

    Args:
        name:            of the form.
        fitting, batches: batches that fit as they are, of so many spread over the epoch.
        whole_bytes:     arena of the largest batch, without the limit.
        peak_bytes:      its arena within the limit; None where that cannot be.
        least_bytes:     the limit that it would need, where `peak_bytes` is None.
        saving:          what is done for it: micro-batches, and what is recomputed.
        recompute_share: what recomputing costs, as a share of the cost of forward.
    """

    name: str
    fitting: int
    batches: int
    whole_bytes: int
    peak_bytes: int | None
    least_bytes: int | None = None
    saving: str = ""
    recompute_share: float = 0.0

    def __str__(self) -> str:
        head = f"  {self.name}: {self.fitting} of {self.batches} batches fit as they are"
        whole = f"the largest takes {megabytes(self.whole_bytes)} MB"
        if self.peak_bytes is None:
            least = megabytes(self.least_bytes or 0)
            then = f"{whole}, and at the least {least} MB: it cannot keep the limit"
        elif not self.saving:
            then = f"{whole}, nothing is done"
        else:
            then = f"{whole}, within the limit {megabytes(self.peak_bytes)} MB by {self.saving}; "
            then += (
                f"{self.recompute_share:.1%} of forward's cost on top"
                if self.recompute_share
                else "nothing is computed again"
            )
        lines = textwrap.wrap(then, _WIDTH - 4, break_long_words=False)
        return "\n".join([head, *[f"    {line}" for line in lines]])


def limits_as_text(limit: int, limited: Iterable[WithinLimit]) -> list[str]:
    heading = f"within {megabytes(limit)} MB of arena, as planned"
    return [heading, *[line for one in limited for line in str(one).splitlines()]]
