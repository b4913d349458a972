"""Attributes of objects: those that are set, and slots for those that a class annotates."""

from __future__ import annotations

import sys
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


class SlotsOfAnnotations(type):
    """The metaclass of nodes: types of our own have a slot for each attribute that they annotate.

    Users' types say so themselves by `__slots__`; without it they take any attribute.
    """

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **named: Any
    ) -> SlotsOfAnnotations:
        # A call of `type` leaves the module out, and `type` itself would take it from here.
        body = {"__module__": sys._getframe(1).f_globals.get("__name__", ""), **body}
        if body["__module__"].startswith("dynbatch.") and "__slots__" not in body:
            annotated = body.get("__annotations__", {}).items()
            body["__slots__"] = tuple(
                [key for key, kind in annotated if key not in body and "ClassVar" not in str(kind)]
            )
        return super().__new__(cls, name, bases, body, **named)
