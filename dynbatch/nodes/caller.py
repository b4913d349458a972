"""Where the user's own code is on the stack: the last line of the library's errors."""

from __future__ import annotations

import copy
import traceback

import numpy as np

# Frames of NumPy and `copy` lie between a user's line and what a node says to them.
INSIDE = (__file__.rsplit("nodes", 1)[0], np.__file__.removesuffix("__init__.py"), copy.__file__)


def caller() -> str:
    """File, line and function of the innermost frame outside dynbatch and a node type's rule."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(INSIDE) and frame.name != "infer_shape":
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an interactive line"
