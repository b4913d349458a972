"""The texts of errors."""

from collections.abc import Callable
from typing import Any

import pytest


def raised(error: type[Exception], action: Callable[[], Any], *pieces: str) -> str:
    """The message of the error that `action` raises; it has these pieces, in order."""
    with pytest.raises(error) as found:
        action()
    message, position = str(found.value), 0
    for piece in pieces:
        assert piece in message[position:], message
        position = message.index(piece, position) + len(piece)
    return message
