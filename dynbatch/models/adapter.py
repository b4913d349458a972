"""`Adapter`: what a layer adds to its own result, and the layers that have room for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from dynbatch.models.module import Module
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter


class Adapter(Module):
    """Base: called with what its layer reads and makes, it returns what the layer returns.

    While it is merged, its change is in the layer's weight: it adds nothing, and lists no
    parameters, so that the model is a plain one to whoever saves or trains it.

    Attributes:
        is_merged: whether it is.
    """

    is_merged: bool = False

    def __call__(self, read: Any, y: Node) -> Node:
        """y, the layer's result, with the adapter's change.

        Args:
            read: the node that a linear map read; of a table, a function that reads rows of a table
                  as the layer read those of its own.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    def _members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return iter(()) if self.is_merged else super()._members()


class Adaptable(Module):
    """Base of layers that a weight decides, to whose result an adapter may add.

    Class attributes:
        adapted_weight: the weight's name.
    """

    adapted_weight: ClassVar[str] = "weight"
    adapter: Adapter | None = None

    def _rewritten(self) -> Iterator[int]:
        if self.adapter is not None and self.adapter.is_merged:
            yield getattr(self, self.adapted_weight).uid

    def adapted(self, read: Any, y: Node) -> Node:
        """The layer's result y, changed by its adapter if there is one."""
        return y if self.adapter is None else self.adapter(read, y)
