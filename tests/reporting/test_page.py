"""The page of `explain(html=...)`: its structure, hostile names, and a real browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from tests.browser import BROWSER, DRIVER, browser
from tests.reference_models import trained_graph

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">&'$script\n"
VOID = {"meta", "img", "link", "input", "br", "hr"}


class Tree(HTMLParser):
    """Elements with their attributes and text; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        return [
            e for e in self.elements
            if e["tag"] == tag and all(e.get(k) == v for k, v in attributes.items())
        ]  # fmt: skip


def hostile_graph():
    """A closed graph whose parameter and node type have names made to break out of the page."""
    kind = type(
        "Evil<b>\"'&",
        (db.Node,),
        {
            "__slots__": ("text",),
            "static": ("text",),
            "infer_shape": lambda self, shape: shape,
            "forward": classmethod(lambda cls, batch, y, x: np.copyto(y.flat, x.flat)),
            "backward": classmethod(lambda cls, batch, dy, dx: np.copyto(dx.flat, dy.flat)),
        },
    )
    a, b = (db.Parameter(np.ones(2, "float32"), name=name + HOSTILE) for name in "ab")
    with db.Graph() as graph:
        ends = [F.sum(kind(F.parameter(graph, p), text=p.name)) for p in (a, b)]
        graph.backward(F.mean(ends))
    return graph


def read(graph, tmp_path):
    path = tmp_path / "page.html"
    assert graph.explain(html=path) == graph.explain()
    return path.read_text(encoding="utf-8")


def test_every_run_of_a_batch_is_a_bar_and_every_batch_a_row(tmp_path):
    graph = trained_graph()
    tree = Tree(read(graph, tmp_path))
    rows = graph._executor.rows()
    bars = [e for e in tree.all("button") if e.get("class", "").startswith("bar")]
    steps = sorted([int(bar["data-step"]) for bar in bars if bar["data-step"] != "-1"])
    assert steps == sorted([n for n, row in enumerate(rows) for _ in row.spans])
    assert [b["data-what"].split(",")[0] for b in bars if b["data-step"] == "-1"] == [
        "host: plan", "host: place in memory"]  # fmt: skip
    assert all(bar["aria-label"] for bar in bars)
    marks = [e["id"] for e in tree.all("tr") if e.get("id", "").startswith("batch-")]
    assert marks == [f"batch-{number}" for number in range(len(rows))]
    for bar in bars:
        left, width = re.findall(r"([\d.]+)%", bar["style"])
        assert 0 <= float(left) and float(left) + float(width) <= 100.001
    labels = [e["text"] for e in tree.all("div", **{"class": "label"})]
    assert labels[1] == "host" and len(labels) == 2 + len(
        {s.signature for s in graph.plans[0].steps}
    )


def test_a_row_says_what_the_batch_was(tmp_path):
    a, b = (
        db.Parameter(np.ones((3, 2), "float32"), name=name) for name in ("a.weight", "b.weight")
    )
    with db.Graph() as graph:
        for length in (1, 2):
            x = F.input(graph, np.ones((length, 2)))
            F.linear(F.tanh(x), a)
            F.linear(F.exp(x), b)
        graph.forward()
    tree = Tree(read(graph, tmp_path))
    cells = [e["text"] for e in tree.all("td")]
    place = cells.index("LinearMap weight='a.weight' 2 → 3")
    assert cells[place + 1 : place + 4] == ["2", "3", "3"]  # nodes, rows, width
    reasons = [e["text"] for e in tree.all("tr") if "parameter differs" in e["text"]]
    assert any("LinearMap" in text and "'a.weight' / 'b.weight'" in text for text in reasons)
    assert "5 (5)" in [e["text"] for e in tree.all("dd")]  # batches beside the lower bound


def test_the_page_is_one_file_and_its_policy_allows_its_own_script_only(tmp_path):
    text = read(trained_graph(), tmp_path)
    tree = Tree(text)
    assert not [e for e in tree.elements if "src" in e or "href" in e]
    assert (
        "url(" not in text and "@import" not in text and "http" not in text.replace("http-eq", "")
    )
    (script,) = tree.all("script")
    digest = base64.b64encode(hashlib.sha256(script["text"].encode()).digest()).decode()
    (policy,) = [e["content"] for e in tree.all("meta") if "http-equiv" in e]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_hostile_names_stay_text(tmp_path):
    tree = Tree(read(hostile_graph(), tmp_path))
    assert not tree.all("img") and not tree.all("b") and len(tree.all("script")) == 1
    kind = "Evil<b>\"'&"
    assert kind in [e["text"] for e in tree.all("td")]
    labels = [e["text"] for e in tree.all("div", **{"class": "label"}) if kind in e["text"]]
    assert len(labels) == 2 and all("<img src=x" in label for label in labels)


def test_a_graph_that_ran_nothing_has_a_page(tmp_path):
    with db.Graph() as graph:
        assert Tree(read(graph, tmp_path)).all("table")


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")
    monkeypatch.setattr("dynbatch.reporting.introspection.page", lambda record: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained_graph().explain(html=path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_pages_go_where_any_path_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained_graph().explain(html="page.html")
    assert (tmp_path / "page.html").exists()


# In a browser -------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium with chromedriver: the page is parsed, not opened"
)
DETAIL = "return document.getElementById('detail').innerText"
FOCUSED = "return Number(document.activeElement.dataset.step)"


@needs_browser
def test_keyboard_and_mouse_show_each_batch(tmp_path):
    graph = trained_graph()
    path = tmp_path / "page.html"
    graph.explain(html=path)
    with browser() as page:
        page.open(path)
        for name in ("Tab", "Tab", "Tab"):  # the two zoom buttons, then the first bar
            page.press(name)
        assert "host: plan" in page.script(DETAIL)
        page.press("End")
        last = page.script(FOCUSED)
        assert f"batch {last}: " in page.script(DETAIL) and "bytes copied" in page.script(DETAIL)
        page.press("Enter")
        assert page.script(f"return document.getElementById('batch-{last}').className") == "chosen"
        assert page.script("return document.activeElement.getAttribute('aria-pressed')") == "true"
        page.press("Enter")
        assert page.script("return document.querySelectorAll('.chosen').length") == 0
        page.press("Home", "Right", "Right")
        assert page.script(FOCUSED) >= 0
        before = page.script("return document.activeElement.closest('.line').innerText")
        page.press("Up")
        assert page.script("return document.activeElement.closest('.line').innerText") != before
        page.press("Down")
        assert page.script("return document.activeElement.closest('.line').innerText") == before
        page.point('.bar[data-what^="batch 0: forward"]')
        assert "batch 0: forward" in page.script(DETAIL)
        page.click('.bar[data-what^="batch 0: forward"]')
        assert page.script("return document.getElementById('batch-0').className") == "chosen"
        width = "return document.querySelector('.lines').getBoundingClientRect().width"
        narrow = page.script(width)
        page.click("#wider")
        assert page.script(width) == pytest.approx(2 * narrow)
        assert page.log() == []


@needs_browser
def test_hostile_names_do_nothing_in_a_browser(tmp_path):
    path = tmp_path / "page.html"
    hostile_graph().explain(html=path)
    with browser() as page:
        page.open(path)
        page.press("Tab", "Tab", "Tab", "End")
        assert page.script("return document.title") == "dynbatch: what ran"
        assert page.script("return document.images.length") == 0
        assert "batch" in page.script(DETAIL)
        assert page.log() == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper_in_both_schemes(tmp_path, scheme):
    path = tmp_path / "page.html"
    trained_graph().explain(html=path)
    with browser(f"--blink-settings=preferredColorScheme={1 if scheme == 'light' else 0}") as page:
        page.open(path)
        style = "getComputedStyle(document.body)"
        colours = page.script(f"return [{style}.color, {style}.backgroundColor]")
        ink, paper = ([int(v) for v in re.findall(r"\d+", colour)[:3]] for colour in colours)
        assert (sum(paper) > sum(ink)) == (scheme == "light")
        assert _contrast(ink, paper) > 7  # WCAG 2.2, level AAA


def _contrast(a, b):
    def luminance(colour):
        linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted([luminance(a), luminance(b)])
    return (light + 0.05) / (dark + 0.05)
