"""Options that several commands have."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from dynbatch.errors import DataError


def add_base(add: Callable[..., object]) -> None:
    """Add the option --from to a command that loads a run: a folder, in `from_`."""
    add("--from", dest="from_", metavar="FOLDER", help="where the model of a run with --lora is "
        "now, if it was moved")  # fmt: skip


def function_of_the_user(option: str, name: str) -> Callable[..., Any]:
    """The function "package.module:function", importable from the folder where the command runs.

    Raises:
        DataError: there is no such function.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        imported: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            f"{option} {name}: {error}.\n  give: package.module:function, importable from here: "
            "network:make for make in network.py"
        ) from error
    return imported
