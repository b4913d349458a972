import json
import math
import re

import pytest

import dynbatch as db
from dynbatch.pictures.run_curves import Curve, read_curves
from tests.marks import exhaustive
from tests.pictures.svg import SVG, require_clear_text, root_of, texts_of


def write_run(folder, count, *, every=10, watch=0, names=("embed.weight", "bias"), **numbers):
    """A run of `count` updates, validated after each tenth; `numbers` replace those of a line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for step in range(1, count + 1):
        line = {
            "step": step, "epoch": (step - 1) // every, "sentences": 4, "tokens": 40,
            "loss": 4.0 / step**0.3, "peak_bytes": 1_000_000 + step, "lr": 1e-3,
            "sentences_per_second": 100.0,
        }  # fmt: skip
        line |= {name: make(step) for name, make in numbers.items()}
        lines.append({name: value for name, value in line.items() if value is not ...})
        if watch and (step - 1) % watch == 0:
            ratios = {name: {"update_ratio": 10.0 ** -(1 + k)} for k, name in enumerate(names)}
            lines.append({"step": step, "epoch": 0, "parameters": ratios})
        if step % every == 0:
            epoch = step // every - 1
            metric = {"step": step, "epoch": epoch, "metric": 0.5 + 1 / step, "is_best": epoch < 2}
            lines.append(metric)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_a_run_is_told_in_numbers(tmp_path):
    run = write_run(tmp_path / "poems", 40, padded_bytes=lambda step: 9_000_000 + step)
    assert db.pictures.training(run).description == (
        "poems: 40 updates in 4 epochs; loss 4 at first and 1.323 at the end; best metric 0.55 "
        "after update 20; 1,000 tokens per second at the end; at most 1 MB of memory; padded up "
        "to 9 MB."
    )
    history = read_curves(run / "metrics.jsonl")
    assert (history.name, history.best, history.metric.steps) == ("poems", 20, [10, 20, 30, 40])


def test_a_metric_is_called_by_its_name_where_the_file_says_it(tmp_path):
    plain, named = write_run(tmp_path / "plain", 20), write_run(tmp_path / "named", 20)
    path = named / "metrics.jsonl"
    text = path.read_text()
    path.write_text(
        text.replace('"is_best"', '"metrics": {"exact match": 0.5, "F1": 1}, "is_best"')
    )
    picture = db.pictures.training(named)
    assert "best exact match 0.55 after update 20" in picture.description
    assert "Exact match of each validation" in texts_of(picture)
    both = texts_of(db.pictures.training(plain, named))
    assert {"Exact match of each validation", "Metric of each validation"} <= set(both)


def test_updates_that_name_no_epoch_are_counted_alone(tmp_path):
    run = write_run(tmp_path / "own", 9, epoch=lambda step: ...)
    assert db.pictures.training(run).description.startswith("own: 9 updates; loss 4 at first")
    run = write_run(tmp_path / "short", 1)
    assert db.pictures.training(run).description.startswith("short: 1 update in 1 epoch; loss 4")


@pytest.mark.parametrize("count", [1, 2, 9, 400])
def test_a_picture_of_any_run_has_clear_text(tmp_path, count):
    nan = dict(loss=lambda step: None if step % 3 == 0 else 9.0)
    sentences = dict(tokens=lambda step: ..., lr=lambda step: 3e-5 / step)
    runs = [
        write_run(tmp_path / "a", count, watch=3, names=[f"layer.{k}.weight" for k in range(50)]),
        write_run(tmp_path / "b", count, **nan),
        write_run(tmp_path / "deep" / "a", count, every=1000, watch=1, **sentences),
    ]
    for shown in (*[[run] for run in runs], runs):
        require_clear_text(db.pictures.training(*shown))


def test_two_runs_share_the_panels_and_have_a_colour_each(tmp_path):
    runs = [write_run(tmp_path / name / "run", 30) for name in ("a", "b")]
    picture = db.pictures.training(*runs)
    texts = texts_of(picture)
    assert texts[0] == "2 training runs" and {"run (1)", "run (2)"} <= set(texts)
    lines = [e.get("class") for e in root_of(picture).iter(f"{SVG}polyline")]
    assert lines.count("line line-blue") == lines.count("line line-vermilion") == 5


def test_squares_of_updates_are_coloured_by_their_ratio(tmp_path):
    names = ["large", "high", "usual", "low", "small", "none"]  # 0.1 to 1e-6
    picture = db.pictures.training(write_run(tmp_path / "run", 8, watch=2, names=names))
    shades = {
        (e.get("class"), e.get("opacity")): e.get("d").count("M")
        for e in root_of(picture).iter(f"{SVG}path")
    }
    assert shades == {
        ("fill-vermilion", None): 4, ("fill-vermilion", "0.4"): 4, ("fill-grid", None): 4,
        ("fill-blue", "0.4"): 4, ("fill-blue", None): 8,
    }  # fmt: skip


@pytest.mark.parametrize("updates", [15_000, exhaustive(100_000)])
def test_a_long_run_stays_a_small_file_that_keeps_what_stands_out(tmp_path, updates):
    run = write_run(
        tmp_path / "run", updates, every=5000,
        loss=lambda step: 50.0 if step == updates - 777 else 4.0 / step**0.3 + step % 7 / 50,
    )  # fmt: skip
    picture = db.pictures.training(run)
    assert len(picture.svg) < 250_000
    heights = [
        float(y)
        for element in root_of(picture).iter(f"{SVG}polyline")
        if element.get("class") == "line line-sky"
        for y in re.findall(r",([\d.]+)", element.get("points"))
    ]
    assert min(heights) < sorted(heights)[1] - 100  # one update alone is that high


def test_a_smoothed_loss_does_not_lag_behind_a_loss_that_falls():
    count = 10_000
    steps = list(range(1, count + 1))
    falling = [2 + 8 * math.exp(-t / 60) + 0.2 * (-1) ** t for t in steps]
    smooth = Curve(steps, falling).smoothed()
    assert smooth.steps[0] == 1 and smooth.steps[-1] == count and len(smooth.steps) == 1000
    for step, value in zip(smooth.steps, smooth.values, strict=True):
        assert value == pytest.approx(2 + 8 * math.exp(-step / 60), abs=0.25)
        assert step < 1000 or value == pytest.approx(2, abs=0.01)


def test_smoothing_leaves_a_line_as_it_is_and_leaves_out_what_is_not_finite():
    steps = list(range(1, 201))
    rising = Curve(steps, [float(step) for step in steps]).smoothed()
    assert rising.steps == steps
    assert rising.values[:-2] == pytest.approx(steps[:-2])  # the last windows are cut off
    gaps = Curve(steps, [math.nan, *[2.0, math.inf] * 99, 2.0]).smoothed()
    assert gaps.steps == [*range(2, 200, 2), 200] and set(gaps.values) == {2.0}
    assert Curve(steps[:3], [math.nan] * 3).smoothed() == Curve([], [])
    spike = Curve(steps, [1.0] * 100 + [1e30] + [1.0] * 99).smoothed()
    assert [value for value in spike.values if value < 1e29] == [1.0] * 195


def test_runs_share_an_axis_only_where_they_measure_the_same_in_the_same_unit(tmp_path):
    runs = []
    for number, (measure, more) in enumerate(
        [("F1", {}), ("F1", {}), ("perplexity", {}), ("F1", {"tokens": lambda step: ...})]
    ):
        run = write_run(tmp_path / f"run{number}", 30, **more)
        path = run / "metrics.jsonl"
        path.write_text(
            path.read_text().replace('"is_best"', f'"metrics": {{"{measure}": 1}}, "is_best"')
        )
        runs.append(run)
    picture = db.pictures.training(*runs)
    require_clear_text(picture)
    hints = [e.text for e in root_of(picture).iter(f"{SVG}title")]
    titles = [text for text in texts_of(picture) if " of each " in text or "second" in text]
    assert titles == [
        "F1 of each validation", "Perplexity of each validation", "Tokens per second",
        "Sentences per second",
    ]  # fmt: skip
    assert {"Loss, nats per token", "Loss, mean of the mini-batch"} <= set(texts_of(picture))
    for run, metric, speed in [("run1", "f1", "tokens"), ("run2", "perplexity", "tokens"),
                               ("run3", "f1", "sentences")]:  # fmt: skip
        assert f"{run}: {metric} of each validation" in hints
        assert f"{run}: {speed} per second" in hints


def test_a_picture_of_one_run_names_the_run(tmp_path):
    run = write_run(tmp_path / "plain", 9)
    assert texts_of(db.pictures.training(run))[0] == 'Training run "plain"'
    assert texts_of(db.pictures.training(run / "metrics.jsonl"))[0] == 'Training run "plain"'


def test_runs_that_cannot_be_drawn_are_one_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "metrics.jsonl").touch()
    for runs, says in [
        ([tmp_path / "empty"], "empty/metrics.jsonl: there is no such file"),
        ([tmp_path / "nowhere"], "nowhere: there is no such file"),
        ([tmp_path / "fresh"], "tells of no update"),
        ([], "0 runs are given"),
    ]:
        with pytest.raises(ValueError, match=says):
            db.pictures.training(*runs)
