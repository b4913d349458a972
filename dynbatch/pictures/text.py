"""The width of text in a picture, and text cut to a width.

Widths are the advances of Helvetica and Arial (Adobe Font Metrics). A drawing gives each text its
width too (`textLength`), so that it takes that room whichever font the viewer has.
"""

from __future__ import annotations

import unicodedata

ADVANCES = dict.fromkeys("0123456789abdeghnopquL#$_?", 556) | {
    character: advance
    for characters, advance in (
        ("ijl", 222), (" !,./:;I[]\\ft", 278), ("()-`r", 333), ("'|", 230), ('"{}', 345),
        ("*^", 430), ("cksvxyzJ", 500), ("+=<>~×÷−", 584), ("FTZ", 611), ("&ABEKPSVXY", 667),
        ("CDHNRUw", 722), ("GOQ", 778), ("mM", 833), ("%", 889), ("W", 944), ("@…—→", 1015),
        ("·", 278), ("–", 556),
    )
    for character in characters
}  # fmt: skip
"""Thousandths of the font size by character."""

OTHER = 620
BOLD = 1.07


def width_of(text: str, size: float, is_bold: bool = False) -> float:
    """The width of text in pixels.

    Args:
        size: of the font, in pixels.

    Example:
        >>> width_of("tokens", 10)
        29.46
    """
    thousandths = sum([_advance(character) for character in text])
    return thousandths * size / 1000 * (BOLD if is_bold else 1.0)


def fitted(text: str, size: float, width: float, is_bold: bool = False) -> str:
    """The text, cut in its middle with "…" if it is wider than `width`; "" if nothing fits.

    Example:
        >>> fitted("encoder.layers.0.attention.weight", 10, 100)
        'encoder.la…on.weight'
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
        return 1000
    return ADVANCES.get(unicodedata.normalize("NFD", character)[0], OTHER)


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    Example:
        >>> plural(1, "row"), plural(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
