"""Parses numbers of bytes with units."""

from __future__ import annotations

import re

from dynbatch.arguments import refused

UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(what: str, size: int | str) -> int:
    """Bytes of a number, or of text such as "2GiB", "500 MB" or "1.5e9".

    Args:
        what: the name of the size, for errors.

    Raises:
        ArgumentError: it is neither, or not above 0.

    Example:
        >>> parse_bytes("memory_limit", "1.5 KiB")
        1536
    """
    text = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", str(size).lower())
    unit = UNITS.get(text[2]) if text else None
    try:
        number = float(text[1]) if text and unit is not None else 0.0
    except ValueError:
        number = 0.0
    if isinstance(size, bool) or unit is None or not number * unit >= 1:
        short = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt])i?\s*", str(size).lower())
        better = f"{short[1]}{short[2].upper()}B" if short else "2GiB"
        raise refused(
            what, f"{size!r} is not a number of bytes",
            'a number above 0, or text with a unit: "800MB" (10⁶), "2GiB" (2³⁰), kB to TiB',
            f'{what}="{better}"',
        )  # fmt: skip
    return int(number * unit)
