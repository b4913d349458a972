"""`GradientNorm`: the norm of gradients on a GPU; reading the number waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import total_ordering
from math import isfinite
from typing import NamedTuple

from dynbatch.backend import Array
from dynbatch.errors import NumericError
from dynbatch.kernels.clipping import Totals
from dynbatch.kernels.runtime.stream import HostCopy
from dynbatch.parameter import Parameter


class NamedGradient(NamedTuple):
    """A parameter with its name and the values of its gradient, which may be sparse."""

    name: str
    parameter: Parameter
    values: Array


@total_ordering
class GradientNorm:
    """√(Σ g²) over gradients on a GPU. Using the number waits for it.

    Nothing waits when it is made, so it may turn out not to be finite when the update that should
    not happen has been started. Therefore an update whose gradients were measured does nothing on
    the GPU unless the norm is finite: parameters and optimizer state stay as they were.
    `NumericError` is raised by whatever comes first: reading the norm, the next `step` of the
    optimizer, or its `state_dict`.

    Args:
        gradients: what is measured.

    Attributes:
        array:    the norm, (1,) float64 of the device.
        was_read: whether somebody has read it.

    Example:
        norm = clip_grad_norm_(model, 1.0)
        optimizer.step()
        print(float(norm), f"{norm:.2f}", norm > 1)
    """

    def __init__(self, gradients: Sequence[NamedGradient]) -> None:
        self._names = [each.name for each in gradients]
        self._squares = Totals([each.values for each in gradients], sent=False)
        self.array = self._squares.norm()
        self._copy = HostCopy(self.array)
        self.was_read = False

    def is_finite(self) -> bool:
        """Whether the norm is a number; waits for it."""
        return isfinite(self._copy.read()[0])

    def __float__(self) -> float:
        """The norm, once `require_finite` has waited for it."""
        self.require_finite()
        return float(self._copy.read()[0])

    def require_finite(self) -> None:
        """Wait for the norm.

        Raises:
            NumericError: it is NaN or infinite; names gradients that are.
        """
        self.was_read = True
        if not self.is_finite():
            raise NumericError(not_finite(self._names, self._squares.read()))

    def __eq__(self, other: object) -> bool:
        return float(self) == other

    def __lt__(self, other: float) -> bool:
        return bool(float(self) < other)

    __hash__ = object.__hash__

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __repr__(self) -> str:
        return repr(float(self)) if self.was_read else "GradientNorm(not read yet)"


def not_finite(names: Sequence[str], all_squares: Sequence[float]) -> str:
    """The error for squares whose sum is not finite."""
    squares = dict(zip(names, all_squares, strict=True))
    bad = [name for name, square in squares.items() if not isfinite(square)]
    bad = bad or [max(squares, key=lambda name: squares[name])]
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return (
        f"clip_grad_norm_: the gradient of {', '.join(map(repr, bad[:3]))}{more} is not finite "
        f"(sum of squares {squares[bad[0]]}).\n"
        "  rule: every gradient is finite\n"
        "  fix:  lower the learning rate or warm it up; look for log(0), 0/0 or √0 in the loss."
    )
