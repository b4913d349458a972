"""The interfaces that training needs of a model and its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from dynbatch.named_parameters import HasParameters

Example = Any
"""One example of the data: what the loss function takes."""

State = dict[str, Any]
"""An object out of JSON."""


class TrainedModel(HasParameters, Protocol):
    """Knows training from evaluation, as `models.Module` does."""

    def train(self) -> object: ...

    def eval(self) -> object: ...


class Batches(Protocol):
    """Mini-batches of an epoch, the same ones whenever they are asked for, as `train.batching`."""

    def epoch(self, epoch: int, /) -> Iterable[Sequence[Example]]: ...
