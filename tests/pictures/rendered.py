"""Faults of a picture's text, as a browser shows it."""

import re
from itertools import combinations
from typing import NamedTuple

import pytest

from tests.browser import BROWSER, DRIVER

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium with chromedriver: pictures are not rendered"
)

FONTS = ("", "DejaVu Sans", "Liberation Sans")
"""The picture's own, then some that viewers have instead; one that is absent is replaced."""

# Not every viewer squeezes a text to its `textLength`: it may not be what keeps text in place.
RENDER = """
const [picture, family] = arguments;
document.documentElement.innerHTML = `<body style="margin:0">${picture}</body>`;
const style = document.createElement('style');
if (family) style.textContent = `svg.dynbatch text { font-family: "${family}", sans-serif }`;
document.body.append(style);
const svg = document.querySelector('svg');
const edges = ({left, top, right, bottom}) => [left, top, right, bottom];
for (const text of svg.querySelectorAll('text')) text.removeAttribute('textLength');
const texts = [...svg.querySelectorAll('text')].map(
  text => [text.textContent, ...edges(text.getBoundingClientRect())]);
const shapes = [...svg.querySelectorAll('rect, path[class^=fill]')].slice(1);
const boxes = shapes.filter(shape => shape.getAttribute('opacity') !== '0').flatMap(shape => {
  if (shape.tagName === 'rect') return [edges(shape.getBoundingClientRect())];
  return [...shape.getAttribute('d').matchAll(/M([-\\d.]+) ([-\\d.]+)h([\\d.]+)v([\\d.]+)/g)].map(
    ([, x, y, width, height]) => [+x, +y, +x + +width, +y + +height]);
});
return {frame: edges(svg.getBoundingClientRect()), texts, boxes};
"""

TOUCH = 1.0
"""Pixels by which edges may differ: antialiasing, and rounding of advances."""


class Area(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def is_inside(self, other):
        return (
            self.left >= other.left - TOUCH
            and self.right <= other.right + TOUCH
            and self.top >= other.top - TOUCH
            and self.bottom <= other.bottom + TOUCH
        )

    def meets(self, other):
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > TOUCH and down > TOUCH

    def has_middle_of(self, other):
        x, y = (other.left + other.right) / 2, (other.top + other.bottom) / 2
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    @property
    def size(self):
        return (self.right - self.left) * (self.bottom - self.top)


def glyphs(left, top, right, bottom):
    """The part of a line of text that letters fill: lines have room above and below."""
    height = bottom - top
    return Area(left, top + 0.18 * height, right, bottom - 0.1 * height)


def faults(page, svg, family=""):
    """Each text that leaves the picture or its box, runs into a box, or lies on another text."""
    shown = page.script(RENDER, svg, family)
    frame, boxes = Area(*shown["frame"]), [Area(*edges) for edges in shown["boxes"]]
    texts = [(text, glyphs(*edges)) for text, *edges in shown["texts"]]
    assert texts and all(area.right > area.left for _, area in texts)
    found = []
    for text, area in texts:
        if not area.is_inside(frame):
            found.append(f"{text!r} leaves the picture")
        around = [box for box in boxes if box.has_middle_of(area)]
        if around and not area.is_inside(min(around, key=lambda box: box.size)):
            found.append(f"{text!r} leaves its box")
        if any(box.meets(area) for box in boxes if box not in around):
            found.append(f"{text!r} runs into a box")
    found += [
        f"{text!r} lies on {other!r}"
        for (text, area), (other, there) in combinations(texts, 2)
        if area.meets(there)
    ]
    return found


def cut_texts(svg):
    """The texts that are shortened in their middle."""
    return [text for text in re.findall(r">([^<>]*)</text>", svg) if re.search(r"\S…\S", text)]
