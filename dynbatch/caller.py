"""Finds the user's own line on the stack, with which the library's errors end."""

from __future__ import annotations

import copy
import dataclasses
import sys
from types import FrameType

import numpy as np

# Frames of NumPy, `copy` and `dataclasses` lie between a user's line and what a node says to them.
INSIDE = (
    __file__.removesuffix("caller.py"),
    np.__file__.removesuffix("__init__.py"),
    copy.__file__,
    dataclasses.__file__,
)
# Methods of a user's type that check what the user gives it.
CHECKS = ("infer_shape", "check_shape")
# Where dataclasses are made.
GENERATED = ("<string>", "__init__")


def caller() -> str:
    """File, line and function of the user's innermost frame."""
    frame, _ = users_frame()
    if frame is None:
        return "an interactive line"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def users_frame() -> tuple[FrameType | None, int]:
    """The innermost frame outside dynbatch and a node type's rule, and how many lie inside it."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and _is_inside(frame):
        frame, count = frame.f_back, count + 1
    return frame, count


def _is_inside(frame: FrameType) -> bool:
    name, function = frame.f_code.co_filename, frame.f_code.co_name
    return name.startswith(INSIDE) or function in CHECKS or (name, function) == GENERATED
