"""Where the user's own code is on the stack: the last line of the library's errors."""

from __future__ import annotations

import copy
import traceback

import numpy as np

# Frames of NumPy and `copy` lie between a user's line and what a node says to them.
INSIDE = (
    __file__.removesuffix("caller.py"),
    np.__file__.removesuffix("__init__.py"),
    copy.__file__,
)
# Where dataclasses are made.
GENERATED = ("<string>", "__init__")


def caller() -> str:
    """File, line and function of the innermost frame outside dynbatch and a node type's rule."""
    for frame in reversed(traceback.extract_stack()):
        is_ours = frame.filename.startswith(INSIDE) or frame.name == "infer_shape"
        if not is_ours and (frame.filename, frame.name) != GENERATED:
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "an interactive line"
