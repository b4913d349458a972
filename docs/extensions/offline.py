"""The built site is offline: its pages load nothing from another host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# What a browser loads by itself; links that a reader may follow are no loading.
LOADED = re.compile(
    r"<(?:script|img|iframe|source|embed|object|video|audio)\b[^>]*\b(?:src|data)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:@import\s+[\"']?|url\([\"']?)((?:https?:)?//[^\"')\s]+)",
    re.IGNORECASE,
)


def loaded_from_elsewhere(text: str) -> list[str]:
    """The addresses of other hosts that a page or a style sheet would load."""
    return ["".join(match) for match in LOADED.findall(text)]


def check(app: Any, error: Exception | None) -> None:
    from sphinx.util import logging  # here, as the tests of this file do without Sphinx

    if error is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css"):
            for address in loaded_from_elsewhere(path.read_text("utf-8")):
                logging.getLogger(__name__).warning(
                    "%s loads %s", path.relative_to(app.outdir), address
                )


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True}
