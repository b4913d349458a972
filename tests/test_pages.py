"""The pages of the project name files and folders that exist, and objects that can be imported."""

import importlib
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.extensions.public_names import undocumented

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*/*.md", "dynbatch/**/*.md")
PAGES = sorted({p.relative_to(ROOT).as_posix() for pattern in PATTERNS for p in ROOT.glob(pattern)})
PAGES.remove("CHANGELOG.md")  # which tells of files that are gone
ENDINGS = r"\.(?:py|md|cu|cuh|toml|html|js|css|sh|png)"
PATH = re.compile(rf"(?<![\w./*])(?:[\w.-]+/)*[\w-]+{ENDINGS}\b(?!\()")
MODULE = re.compile(r"`(\w+(?:/\w+)*/?)`")  # without an ending, `batcher/steps` or `nodes/`
DOTTED = re.compile(r"`(dynbatch(?:\.\w+)+)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")

MADE = {"runs", "build", "dist"}  # by commands of the pages
ROOMS = {path.name for base in (ROOT, ROOT / "dynbatch") for path in base.iterdir()} - MADE
# What a user has or makes, and the example of a path that CONTRIBUTING gives.
EXAMPLES = {"dynbatch/a/b.py", "tests/a/test_b.py", "network.py", "memory.png"}


def paths_of(text):
    """Paths in code spans; fenced blocks show commands and programs of a user."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    spans = re.findall(r"`[^`\n]+`", text)
    paths = {path for span in spans for path in PATH.findall(span) if "NAME" not in path}
    modules = {path for path in MODULE.findall(text) if "/" in path and path.split("/")[0] in ROOMS}
    return (paths | {path.rstrip("/") for path in modules}) - EXAMPLES


@cache
def names():
    """The names of all files of the project."""
    folders = ("dynbatch", "tests", "benchmarks", "examples", "docs", ".ci")
    return {path.name for folder in folders for path in (ROOT / folder).rglob("*")}


def exists(path, page):
    if "/" not in path and path in names():
        return True
    bases = (ROOT, ROOT / "dynbatch", page.parent, ROOT / "docs", ROOT / "docs/design")
    return any((base / f"{path}{ending}").exists() for base in bases for ending in ("", ".py"))


@pytest.mark.parametrize("name", PAGES)
def test_every_path_and_link_of_a_page_leads_somewhere(name):
    page = ROOT / name
    text = page.read_text("utf-8")
    links = {link for link in LINK.findall(text) if "://" not in link}
    missing = [path for path in sorted(paths_of(text)) if not exists(path, page)]
    missing += [link for link in sorted(links) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("name", PAGES)
def test_every_dotted_name_of_a_page_can_be_imported(name):
    for dotted in sorted(set(DOTTED.findall((ROOT / name).read_text("utf-8")))):
        parts = dotted.split(".")
        if parts[1] == "torch" and find_spec("torch") is None:
            continue
        for k in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:k]))
            except ModuleNotFoundError:
                continue
            for part in parts[k:]:
                value = getattr(value, part)
            break


def test_every_image_is_shown_on_a_page_in_words_too():
    shown = {}
    for name in PAGES:
        for words, path in re.findall(
            r"!\[([^\]]*)\]\(([^)\s]+)\)", (ROOT / name).read_text("utf-8")
        ):
            shown.setdefault(Path(path).name, []).append(words)
    images = {
        path.name for ending in ("svg", "png") for path in ROOT.glob(f"docs/images/*.{ending}")
    }
    assert images - shown.keys() == set()
    short = {name: words for name, words in shown.items() if any(len(w.split()) < 5 for w in words)}
    assert short == {}


def test_every_public_name_is_in_the_reference():
    assert undocumented() == []  # add it to its room's page in docs/api


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda p: p.name
)
def test_a_notebook_is_committed_without_outputs(path):
    cells = [
        cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    assert cells and all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in cells
    )


def test_a_path_is_told_from_other_code():
    text = "`batcher/steps/step_run.py`, `kernels/`, `nodes/linear`, `a/b`, `x.md`, `n.py(x)`\n"
    text += "```\nrun/of/mine.py\n```\n"
    assert paths_of(text) == {"batcher/steps/step_run.py", "kernels", "nodes/linear", "x.md"}
