"""The tour in a browser: the page of the site, with Python for browsers from this machine."""

import functools
import http.server
import importlib.util
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs import blocks
from tests.browser import BROWSER, DRIVER, browser

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = Path(sys.prefix, "pyodide")
NEEDED = ("furo", "hatchling", "myst_nb")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium with chromedriver"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)),
        reason="the site is not built here: make docs",
    ),
    pytest.mark.skipif(
        not RUNTIME.is_dir(), reason=f"no Python for browsers: .ci/fetch_pyodide.py {RUNTIME}"
    ),
]


class Files(http.server.SimpleHTTPRequestHandler):
    """Static files, and nothing else."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of the tour alone, whose runtime lies beside it."""
    folder = tmp_path_factory.mktemp("site")
    tour = ["-D", "include_patterns=docs/tour.md", "-D", "root_doc=docs/tour"]
    command = [sys.executable, "-m", "sphinx", "-Q", "-c", "docs", *tour, ".", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    (folder / "runtime").symlink_to(RUNTIME, target_is_directory=True)
    return folder


def settings(site, **changes):
    path = site / "_static/pyodide.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


@contextmanager
def opened(site):
    handler = functools.partial(Files, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser() as page:
            page.call("POST", "/url", url=f"http://127.0.0.1:{server.server_port}/docs/tour.html")
            yield page
        server.shutdown()


def wait_for(page, condition, seconds=300):
    """The value of a JavaScript expression, once it is true."""
    end = time.monotonic() + seconds
    while not (value := page.script(f"return {condition}")):
        assert time.monotonic() < end, page.script("return document.body.innerText")[:2000]
        time.sleep(0.1)
    return value


PRESS = """
const buttons = [...document.querySelectorAll(".run-here button")];
buttons.find(button => button.textContent === arguments[0]).click()"""

OUTPUTS = """[...document.querySelectorAll(".run-output")].map(output => [
  [...output.querySelectorAll("pre")].map(pre => pre.textContent).join(""),
  [...output.querySelectorAll("img")].filter(image => image.naturalWidth).map(({alt}) => alt)])"""


def test_the_tour_runs_in_the_page_and_prints_what_the_page_shows(site):
    settings(site, core="../runtime/", packages="../runtime/")
    tour = blocks.blocks_of((ROOT / "docs/tour.md").read_text("utf-8"))
    with opened(site) as page:
        assert page.script("return performance.getEntriesByType('resource').length") < 20
        page.click(".run-here button")
        wait_for(page, "document.querySelector('.run-status').textContent.includes('ready')")
        page.script(PRESS, "Run all")
        wait_for(page, "!document.querySelector('.run-busy')")
        outputs = page.script(f"return {OUTPUTS}")
        assert len(outputs) == len(tour)
        pictures = []
        for block, (printed, drawn) in zip(tour, outputs, strict=True):
            assert block.output is None or blocks.agrees(block.output, printed), printed
            pictures += drawn
        assert sorted(pictures) == [
            "memory.svg", "padding.svg", "sentence.svg", "timeline.svg", "tree.svg"
        ]  # fmt: skip
        page.script(
            "const block = document.querySelector('.run-block');"
            "block.querySelector('textarea').value = 'x = 1\\nx / 0';"
            "block.querySelector('button').click()"
        )
        wait_for(page, "!document.querySelector('.run-busy')")
        told = page.script(f"return {OUTPUTS}")[0][0]
        assert told.startswith('Traceback:\n  File "block 1", line 2, in <module>\n    x / 0\n')
        page.script("document.querySelector('textarea').value = 'while True: pass'")
        page.script("document.querySelector('.run-block button').click()")
        wait_for(page, "document.querySelector('.run-busy')")
        page.script(PRESS, "Stop")
        assert "Stopped" in page.script("return document.querySelector('.run-status').textContent")
        assert page.script("return !document.querySelector('.run-busy')")
        assert not [line for line in page.log() if "favicon" not in line]


def test_a_file_that_is_missing_or_not_the_one_that_was_tested_is_told(site):
    settings(site, core="../nowhere/", packages="../runtime/")
    failed = "document.querySelector('.run-failed')?.textContent"
    with opened(site) as page:
        page.click(".run-here button")
        assert "/nowhere/pyodide.asm.js cannot be fetched" in wait_for(page, failed)
        (site / "nowhere").mkdir()
        (site / "nowhere/pyodide.asm.js").write_text("self.changed = true")
        page.script("document.querySelector('.run-status').classList.remove('run-failed')")
        page.click(".run-here button")
        assert "is not the file it should be" in wait_for(page, failed)
        assert any("integrity" in line for line in page.log())
