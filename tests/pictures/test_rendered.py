"""Pictures in a browser: their text stays in its box and in the picture, and off other text."""

from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.pictures.drawing import Drawing
from dynbatch.pictures.palette import BLUE
from dynbatch.pictures.text import ADVANCES, width_of
from tests.browser import browser
from tests.pictures.rendered import FONTS, cut_texts, faults, needs_browser
from tests.pictures.test_generation import written
from tests.pictures.test_training import write_run
from tests.reference_models import trained_graph

pytestmark = needs_browser

IMAGES = sorted((Path(__file__).parents[2] / "docs/images").glob("*.svg"))


@pytest.fixture(scope="module")
def page():
    with browser() as page:
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_the_text_of_the_pages_pictures_is_whole_and_clear(page, path):
    svg = path.read_text("utf-8")
    for font in FONTS:
        assert faults(page, svg, font) == [], font
    assert cut_texts(svg) == []


def tree_of(lengths):
    tree = models.BinaryTreeLSTM(8, 8)
    with db.Graph() as graph:
        for length in lengths:
            x = F.input(graph, np.ones((length, 8)))
            parts = [tree.leaf(x[t]) for t in range(length)]
            while len(parts) > 1:
                left, right, *parts = parts
                parts.append(tree.compose(left, right))
        graph.forward()
        return db.pictures.sentence(graph, 0, [f"word{k}" for k in range(lengths[0])])


def limited():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((200, 16))).keep()
        graph.backward(F.sum(F.tanh(F.tanh(F.tanh(x)))))
    return db.pictures.memory(graph, limit="1 GB", padded=3_000_000_000)


def runs_of(folder):
    names = [f"encoder.layers.{k}.self_attention.in_projection.weight" for k in range(12)]
    return [
        write_run(folder / "short", 9, watch=3, names=names),
        write_run(folder / "a run with a long name, that says all of its options" / "run", 120),
        write_run(folder / "sentences", 400, tokens=lambda step: ..., loss=lambda step: 1e9 / step),
    ]


def test_the_text_of_pictures_of_small_data_is_clear(page, tmp_path):
    runs = runs_of(tmp_path)
    graph = trained_graph()
    pictures = [
        tree_of((2,)), tree_of((7, 3)), tree_of((40,)),
        db.pictures.timeline(graph), db.pictures.memory(graph), limited(),
        db.pictures.padding([3]), db.pictures.padding([3, 41, 1, 12]),
        db.pictures.padding(range(1, 60)),
        db.pictures.generation(written(9)[0]),
        db.pictures.training(*runs), *[db.pictures.training(run) for run in runs],
    ]  # fmt: skip
    for picture in pictures:
        for font in FONTS:
            assert faults(page, picture.svg, font) == [], (picture.title, font)


def test_what_is_wrong_with_a_text_is_found(page):
    drawing = Drawing("faults", width=300)
    drawing.rectangle(20, 60, 60, 20, BLUE)
    drawing.text(22, 75, "longer than its box", on=BLUE)
    drawing.text(20, 120, "one text")
    drawing.text(40, 122, "another one")
    drawing.text(250, 160, "leaves the picture")
    drawing.rectangle(100, 185, 60, 20, BLUE)
    drawing.text(30, 200, "runs into it from outside")
    assert [text.split("' ")[-1] for text in faults(page, drawing.finish("").svg)] == [
        "leaves its box", "leaves the picture", "runs into a box", "lies on 'another one'",
    ]  # fmt: skip
    assert cut_texts("<text>12×128…tch 3</text><text>… 8 more</text>") == ["12×128…tch 3"]


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("weight", ["normal", "bold"])
def test_no_text_is_wider_than_its_room(page, font, weight):
    family = font or 'Helvetica, Arial, "DejaVu Sans Condensed"'
    texts = [*sorted(ADVANCES), "é", "Ü", "漢字", "かな", "широкая жизнь", "πολλοί"]
    widths = page.script(
        """const [texts, family, weight] = arguments;
        const context = document.createElement('canvas').getContext('2d');
        context.font = `${weight} 100px ${family}, sans-serif`;
        return texts.map(text => context.measureText(text).width);""",
        texts, family, weight,
    )  # fmt: skip
    wide = {
        text: width
        for text, width in zip(texts, widths, strict=True)
        if width > width_of(text, 100, weight == "bold") + 0.3
    }
    assert wide == {}
