"""`attributes_of`: the attributes of an object, in its `__dict__` and in slots."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any


def attributes_of(value: object) -> dict[str, Any]:
    """The attributes of an object that are set, by name, those of its `__slots__` last."""
    attributes: dict[str, Any] = dict(getattr(value, "__dict__", ()))
    for base in reversed(type(value).__mro__):
        if vars(base).get("__slots__"):  # empty in most bases, which have many other names
            for name, slot in vars(base).items():
                if isinstance(slot, MemberDescriptorType) and hasattr(value, name):
                    attributes.setdefault(name, getattr(value, name))
    return attributes
