"""The room that text takes in a picture, and text cut to its room.

A picture does not know the fonts of its viewer, so room is reserved for the widest of the common
ones: a character takes as much as the wider of Arial's (as wide as Helvetica's) and DejaVu Sans's.
"""

from __future__ import annotations

import unicodedata

ADVANCES = {
    character: advance
    for advance, characters in (
        (280, "'ijl"), (320, ",.I ·"), (360, "/:;\\f|"), (400, "()-[]tᵀ"), (470, '!"r²'),
        (560, "*?JL_`csz–"), (600, "kvxy"), (640, "$0123456789FTabdeghnopqu{}√"),
        (700, "ABEKPSVXYZµ"), (740, "CRU"), (790, "&DGHNOQ"), (850, "#+<=>^w~×÷−←≤≥"), (920, "M"),
        (980, "%m½"), (1030, "@W…—→"),
    )
    for character in characters
}  # fmt: skip
"""Thousandths of the font size by character, rounded up."""

OTHER, WIDE, EMOJI = 800, 1000, 1300
BOLD = 82
"""How many more a bold character takes."""


def width_of(text: str, size: float, is_bold: bool = False) -> float:
    """The room for text in pixels: no common font needs more.

    Args:
        size: of the font, in pixels.

    Example:
        >>> width_of("tokens", 10)
        34.8
    """
    thousandths = sum([_advance(character) for character in text])
    return (thousandths + BOLD * len(text) * is_bold) * size / 1000


def fitted(text: str, size: float, width: float, is_bold: bool = False) -> str:
    """The text, cut in its middle with "…" if it is wider than `width`; "" if nothing fits.

    Example:
        >>> fitted("encoder.layers.0.attention.weight", 10, 100)
        'encoder.…n.weight'
    """
    if width_of(text, size, is_bold) <= width:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if width_of(_shortened(text, middle), size, is_bold) <= width:
            low = middle
        else:
            high = middle
    return _shortened(text, low) if low else ""


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The text in lines of at most `width` pixels, broken at spaces; a longer word is cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(fitted(word, size, width))
    return lines


def clean(text: str) -> str:
    """The text in one line and without what XML cannot hold: control characters, surrogates."""
    return "".join([_shown(character) for character in text])


def _shown(character: str) -> str:
    if character.isspace():
        return " "
    return "\ufffd" if unicodedata.category(character) in ("Cc", "Cs", "Cn", "Cf") else character


def _shortened(text: str, kept: int) -> str:
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def _advance(character: str) -> int:
    known = ADVANCES.get(character)
    if known is not None:
        return known
    if unicodedata.combining(character):
        return 0
    if unicodedata.east_asian_width(character) in "WF":
        return EMOJI if unicodedata.category(character) == "So" else WIDE
    return ADVANCES.get(unicodedata.normalize("NFD", character)[0], OTHER)


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> plural(1, "row"), plural(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
