"""Layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dynbatch.arguments import refused, shown
from dynbatch.models.module import Module


class Sequential(Module):
    """Calls its layers one after the other, each on what the one before gave.

    Args:
        layers: modules, and functions such as `F.relu`. Each has a place, whose number is its name
            as in `torch.nn.Sequential`: `0.weight`, `2.weight`.

    Raises:
        ArgumentError: a layer is neither.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models, nodes as F
        >>> net = models.Sequential(models.Conv2d(1, 8, 3), F.relu, models.MaxPool2d(2))
        >>> [name for name, _ in net.named_parameters()]
        ['0.weight', '0.bias']
        >>> with db.Graph() as graph:
        ...     net(F.constant(graph, 1.0, (8, 12, 1))).shape
        (3, 5, 8)
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for number, layer in enumerate(layers):
            if not callable(layer) or isinstance(layer, type):
                raise refused(
                    "Sequential", f"layer {number} is {shown(layer)}",
                    "modules, or functions of one value", "models.Sequential(layer, F.relu, layer)",
                )  # fmt: skip
            setattr(self, str(number), layer)

    def __call__(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        return iter([value for name, value in vars(self).items() if name.isdecimal()])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, place: int) -> Callable[[Any], Any]:
        return list(iter(self))[place]
