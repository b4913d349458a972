"""The colours of pictures, in light and in dark, as rules of CSS.

Series have the colours of Okabe & Ito 2008 ("Color Universal Design"), which colour-blind readers
tell apart; in the dark each is a lighter colour of its hue. Shapes name a colour by its class, and
never by its value, so that a viewer's `prefers-color-scheme` decides.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class Shade(NamedTuple):
    """A colour on light paper and on dark paper, as "#rrggbb"."""

    light: str
    dark: str


BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, YELLOW, GREY = SERIES = (
    "blue", "vermilion", "green", "purple", "orange", "sky", "yellow", "grey",
)  # fmt: skip
"""Names of the colours of series, in the order in which they are used."""

INK, SOFT, GRID, PANEL, PAPER = "ink", "soft", "grid", "panel", "paper"
"""Names of the colours of text, of secondary text, of thin lines, and of surfaces."""

SHADES = {
    BLUE: Shade("#0072b2", "#4a9fdc"),
    VERMILION: Shade("#d55e00", "#f0813a"),
    GREEN: Shade("#009e73", "#2cbd93"),
    PURPLE: Shade("#cc79a7", "#de97bf"),
    ORANGE: Shade("#e69f00", "#f2b540"),
    SKY: Shade("#56b4e9", "#9bd5f7"),
    YELLOW: Shade("#f0e442", "#f5ec74"),
    GREY: Shade("#737c86", "#99a3ad"),
    INK: Shade("#1c2126", "#e6e9ec"),
    SOFT: Shade("#56616c", "#a7b1bb"),
    GRID: Shade("#d5dae0", "#3a424a"),
    PANEL: Shade("#f0f2f5", "#22272d"),
    PAPER: Shade("#ffffff", "#15181c"),
}

FONT = 'Helvetica, Arial, "Liberation Sans", "DejaVu Sans Condensed", sans-serif'


def series(number: int) -> str:
    """The colour of a series by its number; after the eighth they begin again."""
    return SERIES[number % len(SERIES)]


@cache
def style_sheet() -> str:
    """Rules for the classes `fill-NAME`, `line-NAME` and `text-NAME`, and `on-NAME` for text.

    They hold inside `svg.dynbatch` alone, as an inline picture shares its page's styles.
    """
    rules = [f"svg.dynbatch text{{font-family:{FONT}}}", "svg.dynbatch .line{fill:none}"]
    rules += _rules(0)
    return "".join([*rules, "@media (prefers-color-scheme:dark){", *_rules(1), "}"])


def _rules(scheme: int) -> list[str]:
    rules = []
    for name, shade in SHADES.items():
        colour = shade[scheme]
        rules.append(f"svg.dynbatch .fill-{name},svg.dynbatch .text-{name}{{fill:{colour}}}")
        rules.append(f"svg.dynbatch .line-{name}{{stroke:{colour}}}")
        rules.append(f"svg.dynbatch .on-{name}{{fill:{_readable_on(colour)}}}")
    return rules


def _readable_on(colour: str) -> str:
    """Black or white, whichever has more contrast with a colour (WCAG 2.2, relative luminance)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"
