"""Parameters of tests that `make test` tries, and those that `make test-all` adds."""

from collections.abc import Iterable
from typing import Any

import pytest


def exhaustive(*values: Any) -> Any:
    """A set of parameters that is left out unless asked for."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def quick(some: Iterable[Any], of: Iterable[Any]) -> list[Any]:
    """All values `of`, of which `some` are always tried; tuples are several parameters each."""
    chosen = list(some)
    groups = [value if isinstance(value, tuple) else (value,) for value in of]
    return [
        pytest.param(*group) if group in chosen or group[0] in chosen else exhaustive(*group)
        for group in groups
    ]
