"""`Picture`: a drawing that can be saved, and that notebooks show."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from dynbatch.arguments import refused
from dynbatch.atomic import write_text

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; }}
svg {{ max-width: 100%; height: auto; }}
p {{ max-width: 60rem; white-space: pre-line; }}
</style>
</head>
<body>
{svg}
<p>{description}</p>
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """A drawing in SVG. A notebook shows it where it is the last value of a cell.

    It needs no other file and no network, and follows the reader's light or dark colours.

    Attributes:
        title:       a line that says what is drawn.
        description: the drawing in words and numbers, for those who cannot see it.
        svg:         the drawing, a whole SVG document.

    Example:
        >>> import tempfile
        >>> import dynbatch as db
        >>> picture = db.pictures.padding([3, 41, 1, 12])
        >>> picture.title
        'A mini-batch of 4 sentences, padded and packed'
        >>> path = Path(tempfile.mkdtemp(), "padding.svg")
        >>> picture.save(path)
        >>> path.read_text(encoding="utf-8").startswith("<svg")
        True
    """

    title: str
    description: str
    svg: str = field(repr=False)
    page: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    """Makes the page of `save("x.html")`; None for the drawing above its description."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture: an SVG for ".svg", a page that opens offline for ".html".

        The file is replaced whole or not at all.

        Raises:
            ArgumentError: the path ends otherwise.
            OSError:       the file cannot be written.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix not in (".svg", ".html"):
            raise refused(
                "Picture.save", f"{path.name!r} tells no format",
                'the path ends in ".svg" or ".html"', f'save("{path.with_suffix(".svg").name}")',
            )  # fmt: skip
        write_text(path, self.svg if suffix == ".svg" else self.html())

    def html(self) -> str:
        """The page that `save("x.html")` writes."""
        if self.page is not None:
            return self.page()
        title, description = escape(self.title), escape(self.description)
        return _PAGE.format(title=title, svg=self.svg, description=description)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """The drawing inline, so that pointing at a shape shows its numbers."""
        return f'<div style="max-width:100%;overflow-x:auto">{self.svg}</div>'
