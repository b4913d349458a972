from dataclasses import dataclass

import pytest

from dynbatch.tasks.options import device_name, from_json, given, option, share


@dataclass
class Sizes:
    hidden_size: int = option(3, "units of a layer")
    dropout: float = option(0.5, "share of features", share)
    data: str | None = option(None, "a file", str)
    crf: bool = option(False, "score transitions")
    device: str = option("cpu", "where", device_name)


def settings(*argv):
    return Sizes(**given(Sizes, argv, "train", "Train."))


def test_a_dataclass_is_a_command_line():
    assert settings() == Sizes(3, 0.5, None, False)
    given = settings("--hidden-size", "7", "--dropout", "0", "--data", "x.tgz", "--crf")
    assert given == Sizes(7, 0.0, "x.tgz", True)


def test_a_device_has_a_name_and_maybe_a_number():
    for name in ("cpu", "cuda", "cuda:0", "cuda:12"):
        assert settings("--device", name).device == name


@pytest.mark.parametrize(
    "argv",
    [
        ["--hidden-size", "0"],
        ["--dropout", "1"],
        ["--crf", "yes"],
        *[["--device", name] for name in ("gpu", "cpu:0", "cuda:", "cuda:-1", "cuda1")],
    ],
)
def test_what_is_out_of_range_is_refused_with_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        settings(*argv)
    assert caught.value.code == 2 and "usage: train" in capsys.readouterr().err


def test_one_option_may_be_given_by_its_place():
    @dataclass
    class Reading(Sizes):
        data: str = option("fortunes", "a text", str, is_first=True)

    found = given(Reading, ["book.txt", "--crf"], "train", "x")
    assert found == {"data": "book.txt", "crf": True}
    assert given(Reading, [], "train", "x") == {}


def test_settings_come_back_out_of_json():
    saved = {"hidden_size": 7, "dropout": 0, "data": None, "crf": True}
    assert from_json(Sizes, saved) == Sizes(7, 0, None, True)
    assert from_json(Sizes, {"data": "x"}) == Sizes(data="x")  # the others are as usual


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        ([1], "for an object"),
        ({"colour": 1}, "unknown: 'colour'"),
        ({"hidden_size": "7"}, "str for 'hidden_size'"),
        ({"hidden_size": True}, "bool for 'hidden_size'"),
        ({"hidden_size": 7.0}, "float for 'hidden_size'"),
        ({"hidden_size": 10**300}, "int for 'hidden_size'"),
        ({"hidden_size": 0}, "argument --hidden-size: 0 is below 1"),
        ({"dropout": 1.5}, "argument --dropout: 1.5 is not between"),
        ({"dropout": float("nan")}, "dropout"),
        ({"crf": 1}, "int for 'crf'"),
    ],
)
def test_damaged_settings_say_what_is_wrong(saved, says):
    with pytest.raises(ValueError, match=says):
        from_json(Sizes, saved)


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit):
        settings("--help")
    shown = capsys.readouterr().out
    assert "units of a layer (3)" in shown and "a file\n" in shown
