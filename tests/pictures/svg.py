"""What a picture holds, read back from its SVG."""

import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def root_of(picture):
    return ElementTree.fromstring(picture.svg)


def texts_of(picture):
    """The visible texts, in drawing order."""
    return [element.text for element in root_of(picture).iter(f"{SVG}text")]


def boxes_of(picture):
    """Each visible text with its left, top, right and bottom edge."""
    boxes = []
    for element in root_of(picture).iter(f"{SVG}text"):
        x, y, size = [float(element.get(name)) for name in ("x", "y", "font-size")]
        right = x + float(element.get("textLength"))
        boxes.append((element.text, x, y - 0.72 * size, right, y + 0.2 * size))
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
