from dataclasses import dataclass

import pytest

from dynbatch.tasks.options import from_json, given, option, share


@dataclass
class Sizes:
    hidden_size: int = option(3, "units of a layer")
    dropout: float = option(0.5, "share of features", share)
    data: str | None = option(None, "a file", str)
    crf: bool = option(False, "score transitions")


def settings(*argv):
    return Sizes(**given(Sizes, argv, "train", "Train."))


def test_a_dataclass_is_a_command_line():
    assert settings() == Sizes(3, 0.5, None, False)
    given = settings("--hidden-size", "7", "--dropout", "0", "--data", "x.tgz", "--crf")
    assert given == Sizes(7, 0.0, "x.tgz", True)


@pytest.mark.parametrize("argv", [["--hidden-size", "0"], ["--dropout", "1"], ["--crf", "yes"]])
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
