"""Contents of a picture, read back from its SVG."""

import xml.etree.ElementTree as ElementTree

from dynbatch.pictures.text import width_of

SVG = "{http://www.w3.org/2000/svg}"


def root_of(picture):
    return ElementTree.fromstring(picture.svg)


def texts_of(picture):
    """The visible texts, in drawing order."""
    return [element.text for element in root_of(picture).iter(f"{SVG}text")]


def boxes_of(picture):
    """Each visible text with the left, top, right and bottom edge of the room it has."""
    boxes = []
    for element in root_of(picture).iter(f"{SVG}text"):
        x, y, size = [float(element.get(name)) for name in ("x", "y", "font-size")]
        width = width_of(element.text, size, element.get("font-weight") == "bold")
        left = x - width * {None: 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor")]
        boxes.append((element.text, left, y - 0.72 * size, left + width, y + 0.2 * size))
    return boxes


def require_clear_text(picture):
    """No text leaves the picture, or lies on another."""
    root, boxes = root_of(picture), boxes_of(picture)
    width, height = float(root.get("width")), float(root.get("height"))
    for number, (text, left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and top >= 0 and right <= width + 0.1 and bottom <= height, text
        for other, a, b, c, d in boxes[:number]:
            apart = right <= a or c <= left or bottom <= b or d <= top
            assert apart, f"{text!r} lies on {other!r}"
