"""`Drawing`: shapes and text, which become a `Picture`. Coordinates are pixels from the top left.

Colours are names of `dynbatch.pictures.palette`. All text is escaped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from dynbatch.pictures.palette import INK, PAPER, SOFT, style_sheet
from dynbatch.pictures.picture import Picture
from dynbatch.pictures.text import clean, fitted, width_of, wrapped

MARGIN = 16.0
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 15.0, 12.0, 11.0

Point = tuple[float, float]
Entry = tuple[str, str]
"""A colour and its name in a legend."""


class Drawing:
    """A drawing of a given width; it becomes as high as its contents.

    Args:
        title: stands at the top, and names the picture for screen readers.
        width: in pixels.
        note:  a second line below the title, in smaller letters, wrapped.

    Attributes:
        top: the y below the title, where contents begin.
    """

    def __init__(self, title: str, width: float = 760, note: str = "") -> None:
        self.title, self.width = clean(title), width
        self._parts: list[str] = []
        self._bottom = 0.0
        self.top = MARGIN + TITLE_SIZE
        inside = width - 2 * MARGIN
        self.text(MARGIN, self.top - 2, title, size=TITLE_SIZE, bold=True, within=inside)
        for line in wrapped(note, SMALL_SIZE, inside):
            self.top += SMALL_SIZE + 5
            self.small(MARGIN, self.top, line)
        self.top += 12

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str,
        *,
        outline: str = "",
        radius: float = 0,
        opacity: float = 1,
        hint: str = "",
    ) -> None:
        """A filled rectangle; `hint` is shown to those who point at it."""
        corner = f' rx="{_number(radius)}"' if radius else ""
        shape = (
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(max(0, width))}" '
            f'height="{_number(max(0, height))}"{corner}'
        )
        self._add(shape, "rect", f"fill-{colour}", outline, opacity, hint)
        self._reach(y + height)

    def rectangles(self, boxes: Iterable[Sequence[float]], colour: str, opacity: float = 1) -> None:
        """Many rectangles of one colour as one shape; a box is (x, y, width, height)."""
        steps = []
        for x, y, width, height in boxes:
            across, down = _number(width), _number(height)
            steps.append(f"M{_number(x)} {_number(y)}h{across}v{down}h-{across}z")
            self._reach(y + height)
        if steps:
            self._add(f'<path d="{"".join(steps)}"', "path", f"fill-{colour}", "", opacity, "")

    def line(
        self, points: Sequence[Point], colour: str, *, thick: float = 1, dash: str = "",
        hint: str = "",
    ) -> None:  # fmt: skip
        """A line through points; `dash` is as SVG has it, "4 3"."""
        path = " ".join([f"{_number(x)},{_number(y)}" for x, y in points])
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        shape = (
            f'<polyline points="{path}" stroke-width="{_number(thick)}"{dashes} '
            'stroke-linejoin="round"'
        )
        self._add(shape, "polyline", f"line line-{colour}", "", 1, hint)
        self._reach(max([y for _, y in points], default=0))

    def curve(self, begin: Point, end: Point, colour: str, *, thick: float = 1) -> None:
        """A curve from one point down to another, as edges of graphs have it."""
        (x, y), (to_x, to_y) = begin, end
        middle = (y + to_y) / 2
        path = [x, y, x, middle, to_x, middle, to_x, to_y]
        a, b, c, d, e, f, g, h = map(_number, path)
        shape = f'<path d="M{a} {b}C{c} {d} {e} {f} {g} {h}" stroke-width="{_number(thick)}"'
        self._add(shape, "path", f"line line-{colour}", "", 1, "")

    def area(self, points: Sequence[Point], colour: str, *, opacity: float = 1) -> None:
        path = " ".join([f"{_number(x)},{_number(y)}" for x, y in points])
        self._add(f'<polygon points="{path}"', "polygon", f"fill-{colour}", "", opacity, "")
        self._reach(max([y for _, y in points], default=0))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = INK,
        on: str = "",
        size: float = TEXT_SIZE,
        anchor: str = "start",
        bold: bool = False,
        within: float | None = None,
    ) -> float:
        """Text with its baseline at `y`, cut to `within` pixels; returns the room it takes.

        Args:
            on:     the colour of the shape that it stands on, instead of a colour of its own.
            anchor: what `x` is of the text: "start", "middle" or "end".
        """
        text = clean(text)
        if within is not None:
            text = fitted(text, size, within, bold)
        if not text.strip():
            return 0.0
        weight = ' font-weight="bold"' if bold else ""
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        colours = f"on-{on}" if on else f"text-{colour}"
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}"{weight}{at} '
            f'class="{colours}">{escape(text)}</text>'
        )
        self._reach(y + 0.3 * size)
        return width_of(text, size, bold)

    def small(
        self, x: float, y: float, text: str, anchor: str = "start", within: float | None = None
    ) -> float:
        """Text that stands back: small, in a soft colour."""
        return self.text(x, y, text, colour=SOFT, size=SMALL_SIZE, anchor=anchor, within=within)

    def legend(
        self, x: float, y: float, entries: Sequence[Entry], dash: str | None = None
    ) -> float:
        """Coloured squares with names, in as many lines as they need; returns the y below.

        Args:
            y:    the top of the first line.
            dash: for pieces of lines instead of squares; "" for a whole line.
        """
        left, step, within = x, SMALL_SIZE + 7, self.width - MARGIN - x
        for colour, name in entries:
            room = min(width_of(clean(name), SMALL_SIZE), within - 18)
            if left > x and left + 18 + room > x + within:
                left, y = x, y + step
            if dash is None:
                self.rectangle(left, y + 1, 12, SMALL_SIZE, colour, radius=2)
            else:
                middle = y + 1 + SMALL_SIZE / 2
                self.line([(left - 2, middle), (left + 14, middle)], colour, thick=2, dash=dash)
            self.text(left + 18, y + SMALL_SIZE, name, size=SMALL_SIZE, within=room + 0.01)
            left += 18 + room + 18
        return y + step

    def finish(self, description: str) -> Picture:
        """The picture of all that was drawn.

        Args:
            description: the contents in words and numbers.
        """
        width, height = _number(self.width), _number(self._bottom + MARGIN)
        words = escape("\n".join([clean(line) for line in description.splitlines()]))
        body = "\n".join(self._parts)
        mark = hashlib.sha256(f"{words}{body}".encode()).hexdigest()[:12]
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="dynbatch" role="img" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'aria-labelledby="title-{mark}" aria-describedby="words-{mark}">\n'
            f'<title id="title-{mark}">{escape(self.title)}</title>\n'
            f'<desc id="words-{mark}">{words}</desc>\n'
            f"<style>{style_sheet()}</style>\n"
            f'<rect width="{width}" height="{height}" rx="6" class="fill-{PAPER}"/>\n'
            f"{body}\n</svg>\n"
        )
        return Picture(self.title, description, svg)

    def _add(
        self, shape: str, tag: str, colours: str, outline: str, opacity: float, hint: str
    ) -> None:
        if outline:
            colours += f" line-{outline}"
        see_through = f' opacity="{_number(opacity)}"' if opacity < 1 else ""
        inner = f"><title>{escape(clean(hint))}</title></{tag}>" if hint else "/>"
        self._parts.append(f'{shape} class="{colours}"{see_through}{inner}')

    def _reach(self, y: float) -> None:
        self._bottom = max(self._bottom, y)


def _number(value: float) -> str:
    """A coordinate with two digits at most."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
