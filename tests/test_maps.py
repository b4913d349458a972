"""The two maps of the package name every room, and only folders and modules that exist."""

import re
from pathlib import Path

import pytest

import dynbatch as db

PACKAGE = Path(db.__file__).parent
ROOT = Path(__file__).parent.parent
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def of_contributing():
    """Names in the first column of the table of rooms."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| room |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def of_the_design_page():
    """Names in the first column of the page's first block."""
    block = (ROOT / "docs/design/README.md").read_text("utf-8").split("```")[1]
    columns = [re.split(r"\s{2,}", line)[0] for line in block.splitlines() if line]
    return {name.strip() for column in columns for name in column.split("·")}


MAPS = pytest.mark.parametrize("names", [of_contributing, of_the_design_page])


@MAPS
def test_every_room_is_on_the_map(names):
    assert ROOMS - {name.split("/")[0] for name in names()} == set()


@MAPS
def test_every_path_on_the_map_exists(names):
    missing = [
        name
        for name in sorted(names())
        if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").is_file()
    ]
    assert missing == []
