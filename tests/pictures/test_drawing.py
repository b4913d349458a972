import pytest

from dynbatch.errors import ArgumentError
from dynbatch.pictures.axes import Axis, Panel, seconds, size
from dynbatch.pictures.drawing import Drawing
from dynbatch.pictures.palette import BLUE, SERIES, VERMILION
from dynbatch.pictures.text import fitted, width_of
from dynbatch.reporting.ticks import ticks
from tests.pictures.svg import SVG, boxes_of, require_clear_text, root_of, texts_of

MALICIOUS = '</text></svg><script>alert("1")</script>&\x00\u202e'


def test_text_of_others_cannot_leave_its_place():
    drawing = Drawing(MALICIOUS, note=MALICIOUS)
    drawing.text(20, 80, MALICIOUS)
    drawing.rectangle(0, 100, 10, 10, BLUE, hint=MALICIOUS)
    drawing.legend(20, 120, [(BLUE, MALICIOUS)])
    picture = drawing.finish(MALICIOUS)
    root = root_of(picture)
    allowed = {f"{SVG}{tag}" for tag in ("svg", "title", "desc", "style", "rect", "text")}
    assert {element.tag for element in root.iter()} == allowed
    assert "<script" not in picture.svg and "<script" not in picture.html()
    assert "\x00" not in picture.svg and "\u202e" not in picture.svg


def test_a_picture_has_a_title_and_a_description_for_screen_readers():
    root = root_of(Drawing("lengths").finish("3 sentences"))
    title, words = root[0], root[1]
    assert (title.text, words.text) == ("lengths", "3 sentences")
    assert root.get("aria-labelledby") == title.get("id")
    assert root.get("aria-describedby") == words.get("id")


def test_colours_are_classes_with_rules_in_light_and_in_dark():
    drawing = Drawing("colours")
    for name in SERIES:
        drawing.rectangle(0, 50, 1, 1, name)
    style = root_of(drawing.finish(""))[2].text
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    for name in SERIES:
        assert f".fill-{name}," in light and f".fill-{name}," in dark


def test_a_text_is_cut_in_the_middle_to_its_room():
    long = "encoder.layers.0.self_attention.in_projection.weight"
    short = fitted(long, 12, 120)
    assert width_of(short, 12) <= 120
    assert short.startswith("encoder") and short.endswith("weight") and "…" in short
    assert fitted("fits", 12, 120) == "fits"


def test_an_emoji_has_more_room_than_a_wide_character_and_an_accent_none():
    texts = ("\N{SPARKLES}", "語", "e\N{COMBINING ACUTE ACCENT}")
    assert [width_of(text, 10) for text in texts] == [13.0, 10.0, 6.4]


def test_a_legend_wraps_within_its_width():
    drawing = Drawing("legend", width=300)
    names = [f"series number {k}" for k in range(8)]
    drawing.legend(16, 60, [(name, text) for name, text in zip(SERIES, names, strict=True)])
    picture = drawing.finish("")
    assert texts_of(picture)[1:] == names
    require_clear_text(picture)


@pytest.mark.parametrize("high", [0.0, 1e-7, 3, 97, 12_345, 8e9])
@pytest.mark.parametrize("log", ["", "y"])
def test_numbers_at_axes_stand_apart(high, log):
    drawing = Drawing("axes", width=400)
    y = (high / 1000 or 1e-6, high or 1) if log else (0, high)
    panel = Panel(
        drawing, 16, drawing.top, 368, 200, (0, high), y, x_format=seconds, y_format=size, log=log,
        title="a panel", x_title="seconds since the run began",
    )  # fmt: skip
    panel.curve([0, high / 2, high], [y[0], y[1], y[0]], VERMILION)
    require_clear_text(drawing.finish(""))


@pytest.mark.parametrize("high", [0.3, 41.2, 51, 99, 1000, 41_200])
@pytest.mark.parametrize("height", [90, 150, 170, 230])
def test_the_highest_tick_is_above_all_numbers(high, height):
    panel = Panel(Drawing("axes"), 16, 40, 368, height, (0, 1), (0, high), title="a", x_title="b")
    assert panel.y.high >= high
    assert any(
        panel.y.ticks(about)[-1] == pytest.approx(panel.y.high, rel=1e-9) for about in range(2, 9)
    )


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(-3, 12, 3) == [0, 5, 10]
    assert Axis(1, 1000, is_log=True).ticks() == [1, 10, 100, 1000]


def test_numbers_have_units():
    assert [size(n) for n in (0, 999, 1500, 2.5e6)] == ["0 B", "999 B", "1.5 kB", "2.5 MB"]
    assert [seconds(t) for t in (2e-6, 0.25, 12, 180)] == ["2 µs", "250 ms", "12 s", "3 min"]


def test_a_curve_has_gaps_where_numbers_are_not_finite():
    drawing = Drawing("gaps")
    panel = Panel(drawing, 16, 40, 400, 200, (0, 5), (0, 1))
    before = drawing.finish("").svg.count("<polyline")
    panel.curve([0, 1, 2, 3, 4], [0, 1, float("nan"), 1, 0], BLUE)
    assert drawing.finish("").svg.count("<polyline") == before + 2


def test_a_curve_of_many_points_is_as_short_as_its_pixels():
    drawing = Drawing("long")
    panel = Panel(drawing, 16, 40, 400, 200, (0, 1e5), (0, 1))
    panel.curve(range(100_000), [k % 7 / 7 for k in range(100_000)], BLUE)
    assert len(drawing.finish("").svg) < 60_000


def test_a_text_has_the_room_that_was_measured_on_the_side_of_its_anchor():
    drawing = Drawing("measured")
    for anchor, share in (("start", 0), ("middle", 0.5), ("end", 1)):
        width = drawing.text(300, 60, "漢字 and é", anchor=anchor)
        (_, left, _, right, _) = boxes_of(drawing.finish(""))[-1]
        assert right - left == pytest.approx(width)
        assert left == pytest.approx(300 - share * width)


def test_a_picture_is_saved_as_svg_or_page_and_as_nothing_else(tmp_path):
    picture = Drawing("saved").finish("words")
    picture.save(tmp_path / "new" / "a.svg")
    assert (tmp_path / "new" / "a.svg").read_text() == picture.svg
    picture.save(tmp_path / "a.html")
    assert picture.svg in (tmp_path / "a.html").read_text()
    with pytest.raises(ArgumentError, match=r"'a\.png' tells no format.*\n.*rule.*\n.*a\.svg"):
        picture.save(tmp_path / "a.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "new"]
