import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.errors import ArgumentError, GraphError
from dynbatch.pictures.axes import size
from tests.pictures.svg import SVG, require_clear_text, root_of, texts_of

LAYER = models.LSTM(4, 8)


def step(graph, lengths=(3, 9, 1)):
    return F.mean([F.sum(LAYER(F.input(graph, np.ones((n, 4))))) for n in lengths])


def trained(lengths=(3, 9, 1), **options):
    with db.Graph() as graph:
        graph.backward(step(graph, lengths), **options)
    return graph


def hints_of(picture):
    found = [element.find(f"{SVG}title") for element in root_of(picture).iter(f"{SVG}rect")]
    return [title.text for title in found if title is not None and "stage" in title.text]


def test_each_stage_of_the_plan_is_drawn_with_its_bytes():
    graph = trained()
    use = graph.memory_use
    hints = hints_of(db.pictures.memory(graph))
    assert len(hints) == len(use.stages)
    for number, ((_, sizes), hint) in enumerate(zip(use.stages, hints, strict=True)):
        assert hint.startswith(f"stage {number}: ")
        assert f" {sum(sizes.values()):,} bytes" in hint


def test_backward_before_forward_is_called_early():
    hints = [hint.partition(": ")[2] for hint in hints_of(db.pictures.memory(trained()))]
    kinds = [hint.split(" ", 2)[:2] for hint in hints]
    forward = [kind for kind, _ in kinds].index("forward")
    assert hints[0].startswith("early backward Total, ")
    assert kinds[:forward] == [["early", "backward"]] * forward
    assert "early" not in [kind for kind, _ in kinds[forward:]]


@pytest.mark.parametrize(("others", "label"), [(2, "early backward"), (10, "early"), (40, None)])
def test_a_band_has_as_much_of_its_name_as_fits(others, label):
    first, other = ("early backward Total", {"gradients": 4}), ("forward Tanh", {"activations": 8})
    stages = [first, *[other] * others]
    use = MemoryUse(8, 8, {"activations": 8}, {"Tanh": 8}, stages)
    texts = texts_of(db.pictures.memory(use))
    assert [text for text in texts if text.startswith("early")] == ([label] if label else [])
    assert "forward" in texts


def test_what_changes_the_form_of_values_parts_no_band():
    sizes, of_forms = {"activations": 8}, ["narrow Tanh", "widen Tanh", "widen what is kept Scan"]
    labels = ["forward Tanh", of_forms[0]] * 9 + ["backward Tanh", *of_forms[1:]] * 9
    picture = db.pictures.memory(
        MemoryUse(8, 8, sizes, {"Tanh": 8}, [(label, sizes) for label in labels])
    )
    texts = texts_of(picture)
    assert [texts.count(name) for name in ("forward", "backward")] == [1, 1]
    assert not any(text.startswith(("narrow", "widen")) for text in texts)
    assert any("widen what is kept Scan, 8 bytes" in hint for hint in hints_of(picture))


def test_what_is_predicted_is_drawn_before_anything_runs():
    with db.Graph() as graph:
        loss = step(graph)
        planned = db.pictures.memory(graph.estimate(loss))
        graph.backward(loss)
        assert db.pictures.memory(graph) == planned


def test_limit_and_padded_form_are_lines():
    least = trained().peak_bytes - 200
    padded = 3 * least
    picture = db.pictures.memory(trained(memory_limit=least), padded=padded)
    assert f"Limit {least:,} bytes. To keep it: " in picture.description
    assert any(text.startswith("limit, ") for text in texts_of(picture))
    assert f"padded, {size(padded)}" in texts_of(picture)
    require_clear_text(picture)


def test_a_padded_form_that_is_far_above_is_told_and_leaves_the_step_its_scale():
    graph = trained()
    near, far = (db.pictures.memory(graph, padded=n) for n in (None, 42 * graph.peak_bytes))
    assert "far above the picture" in " ".join(texts_of(far))
    scales = [[t for t in texts_of(one) if t.split(" ")[0].isdigit()] for one in (near, far)]
    assert scales[0] == scales[1] != []
    assert not any(text.startswith("padded, ") for text in texts_of(far))
    assert "42.0 times as much" in far.description
    require_clear_text(far)


def test_the_curve_of_a_padded_graph_is_drawn():
    padded = trained((9, 9, 9)).memory_use
    both = db.pictures.memory(trained(), padded=padded)
    lines = [element.get("class") for element in root_of(both).iter(f"{SVG}polyline")]
    assert lines.count("line line-purple") == 3  # in the legend, the peak, the curve
    assert f"Padded {padded.peak_bytes:,} bytes" in both.description


@pytest.mark.parametrize("count", [1, 300])
def test_pictures_of_few_and_of_many_stages_have_clear_text(count):
    with db.Graph() as graph:
        x = F.input(graph, np.ones(4))
        for _ in range(count):
            x = F.tanh(x)
        graph.backward(F.sum(x.keep()))
        require_clear_text(db.pictures.memory(graph))


def test_a_graph_that_has_not_run_is_refused():
    with db.Graph() as graph, pytest.raises(GraphError, match=r"not run(.|\n)*rule(.|\n)*fix"):
        db.pictures.memory(graph)
    with pytest.raises(ArgumentError, match="graph is a list"):
        db.pictures.memory([])
    with pytest.raises(ArgumentError, match="padded is 'twice'"):
        db.pictures.memory(trained(), padded="twice")
    with pytest.raises(ArgumentError, match="'much' is not a number of bytes"):
        db.pictures.memory(trained(), limit="much")
