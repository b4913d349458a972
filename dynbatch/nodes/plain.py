"""`plain_nodes`: a context in which blocks, cells and scans are nodes of their operators alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

is_plain = ContextVar("is_plain", default=False)
"""Whether blocks, cells and scans make a node of each operator instead of one for all."""


@contextmanager
def plain_nodes() -> Iterator[None]:
    """Inside, a block is what its function builds, and a scan its cell's steps one by one."""
    token = is_plain.set(True)
    try:
        yield
    finally:
        is_plain.reset(token)
