"""`Watched`: what one update does to every parameter, as numbers for the metrics file."""

from __future__ import annotations

from math import nan, sqrt

from dynbatch.kernels.arrays import snapshot
from dynbatch.kernels.clipping import Totals
from dynbatch.optim import Optimizer
from dynbatch.optim.combination import combine
from dynbatch.row_sparse import RowSparse

Statistics = dict[str, float]

DIGITS = 6
"""Significant digits of the numbers in the metrics file."""


class Watched:
    """Statistics of all parameters over one update. For n numbers θ, with gradient g:

        norm           √Σ θ²                    before the update
        mean           Σ θ / n
        deviation      √(Σ θ² / n - mean²)
        gradient_norm  √Σ g²                    before clipping; null without a gradient
        update_norm    √Σ (θ_after - θ)²
        update_ratio   update_norm / norm       null where the norm is 0

    All have the parameters' own unit or, as the ratio, none. A ratio around 1e-3 is usual; far more
    means a rate that is too high, far less one at which a parameter hardly learns.

    The object is made after backward and before clipping; `updated` belongs after the update.
    Between the two a copy of all parameters is held. On a GPU nothing is waited for until
    `statistics` is called.

    Args:
        optimizer: of the parameters.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._parameters = dict(optimizer.named_parameters())
        values = [parameter.value for parameter in self._parameters.values()]
        with_gradient = {
            name: parameter.grad.values if isinstance(parameter.grad, RowSparse) else parameter.grad
            for name, parameter in self._parameters.items()
            if parameter.grad is not None and not parameter.frozen
        }
        self._sums = Totals(values, squared=False)
        self._squares = Totals(values)
        self._gradients, self._having = (
            Totals(list(with_gradient.values())),
            list(with_gradient),
        )
        self._copies = [snapshot(value) for value in values]
        self._updates: Totals | None = None

    def updated(self) -> None:
        """Measure the update, which has just been made or started."""
        values = [parameter.value for parameter in self._parameters.values()]
        combine(self._copies, values, keep=1.0, add=-1.0)
        self._updates = Totals(self._copies)
        self._copies = []

    def statistics(self) -> dict[str, Statistics]:
        """The numbers by parameter, six digits of each; on a GPU this waits for the update."""
        assert self._updates is not None
        gradients = dict(zip(self._having, self._gradients.read(), strict=True))
        statistics_of = {}
        numbers = (self._sums.read(), self._squares.read(), self._updates.read())
        for (name, parameter), total, squares, update in zip(
            self._parameters.items(), *numbers, strict=True
        ):
            count = max(1, parameter.size)
            mean, norm = total / count, sqrt(squares)
            statistics = {
                "norm": norm,
                "mean": mean,
                "deviation": sqrt(max(0.0, squares / count - mean * mean)),
                "gradient_norm": sqrt(gradients.get(name, nan)),
                "update_norm": sqrt(update),
                "update_ratio": sqrt(update) / norm if norm else nan,
            }
            statistics_of[name] = {key: float(f"{x:.{DIGITS}g}") for key, x in statistics.items()}
        return statistics_of
