"""`Definition`: what a function of expressions defines, known by the name of this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Definition:
    """A function of scalars, which is one object: a copy is itself, a pickle is where it stands.

    Kernels are chosen by identity.

    Args:
        body: over expressions; the definition has its name, module and docstring.
    """

    def __init__(self, body: Callable[..., Any]) -> None:
        self.name, self.__doc__ = body.__name__, body.__doc__
        self.__module__, self.__qualname__ = body.__module__, body.__qualname__

    def __reduce__(self) -> str:
        return self.__qualname__
