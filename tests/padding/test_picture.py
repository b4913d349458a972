"""The picture of a comparison."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynbatch.padding.forms import PADDED_BUCKETED, PADDED_RANDOM, UNPADDED_RANDOM
from dynbatch.padding.picture import merged

ROOT = Path(__file__).parents[2]


def test_curves_that_are_one_line_are_drawn_once_under_all_their_names():
    curves = {"a": {1: 100, 2: 200}, "b": {1: 100.4, 2: 199}, "c": {1: 100, 2: 210}, "d": {1: 100}}
    assert merged(curves) == {"a": "a\n= b", "c": "c", "d": "d"}
    assert merged({}) == {}


def test_both_panels_of_a_comparison_name_every_form(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from dynbatch.padding import picture

    figures = []
    new_figure = picture.new_figure
    monkeypatch.setattr(
        picture, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1]
    )
    found = json.loads((ROOT / "benchmarks/results/padding-libreoffice.json").read_text())
    forms = {name: SimpleNamespace(stages=form["stages"]) for name, form in found["forms"].items()}
    by_batch_size = {
        name: {int(size): peak for size, peak in curve.items()}
        for name, curve in found["by_batch_size"].items()
    }
    picture.draw(forms, by_batch_size, found["batch_size"], tmp_path / "a.svg")
    (figure,) = figures
    names = [f"{PADDED_RANDOM}\n= {PADDED_BUCKETED}", UNPADDED_RANDOM]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == names
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == names
    assert [text.get_text() for text in figure.axes[1].texts] == ["58", "806"]
