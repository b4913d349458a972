"""Pages that run in the reader's browser: their script, and the wheel that it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = '<div class="run-here">'
"""Where it stands on a page, the button comes that starts Python; `_static/run.js` has the rest."""


def add_script(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if MARK in context.get("body", ""):
        app.add_js_file("run.js", loading_method="defer")


def add_wheel(app: Any, error: Exception | None) -> None:
    """The wheel of this tree, as `make wheel` builds it, beside the script."""
    if error is None and app.builder.format == "html":
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
        command.append(str(Path(app.outdir, "_static")))
        # What goes wrong stands on standard error.
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def setup(app: Any) -> dict[str, bool]:
    app.connect("html-page-context", add_script)
    app.connect("build-finished", add_wheel)
    return {"parallel_read_safe": True}
