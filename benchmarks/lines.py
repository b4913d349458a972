"""Lines of source by folder: `python -m benchmarks.lines [compiler cells ...]`.

By default these are the compiler and the cells: whatever traces, transforms, prints and runs a
program, along sentences or call by call, on a CPU and on a GPU. Counted is every line, comments
and blank ones too, of Python, C and CUDA (.py, .c, .h, .cu, .cuh); pages (.md) are not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import dynbatch as db
from benchmarks.report import show

PACKAGE = Path(db.__file__).parent
FOLDERS = ("compiler", "cells")
SUFFIXES = (".py", ".c", ".h", ".cu", ".cuh")


class Size(NamedTuple):
    """The amount of source in a folder's own files."""

    files: int = 0
    lines: int = 0


def sizes(folders: Sequence[str], package: Path = PACKAGE) -> dict[str, Size]:
    """Source by folder, for the folders named and all below them, by paths inside the package.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    counted: dict[str, Size] = {}
    for folder in folders:
        if not (package / folder).is_dir():
            raise FileNotFoundError(f"{package / folder} is not a folder")
        for path in sorted((package / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                name = path.parent.relative_to(package).as_posix()
                before = counted.get(name, Size())
                lines = len(path.read_text().splitlines())
                counted[name] = Size(before.files + 1, before.lines + lines)
    return dict(sorted(counted.items()))


def table(counted: Mapping[str, Size]) -> str:
    """A line for each folder, then the sum."""
    lines = [f"{size.lines:8,}  {size.files:4}  {name}" for name, size in counted.items()]
    total = Size(*map(sum, zip(*counted.values(), strict=True)))
    end = f"{total.lines:8,}  {total.files:4}  files in {len(counted)} folders"
    return "\n".join(["   lines files  folder", *lines, end])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines", description=__doc__)
    parser.add_argument(
        "folders", nargs="*", default=FOLDERS, help="inside the package; compiler and cells"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    counted = sizes(options.folders)
    show(table(counted), {name: size._asdict() for name, size in counted.items()}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
