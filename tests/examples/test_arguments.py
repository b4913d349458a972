import signal
from dataclasses import dataclass

import pytest

from dynbatch.errors import DataError
from dynbatch.train.interrupts import terminable
from examples.arguments import exit_status, option, parse, share


@dataclass
class Sizes:
    hidden_size: int = option(3, "units of a layer")
    dropout: float = option(0.5, "share of features", share)
    data: str | None = option(None, "a file", str)
    crf: bool = option(False, "score transitions")


def settings(*argv):
    return parse(Sizes, argv, "train", "Train.")


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

    assert parse(Reading, ["book.txt", "--crf"], "train", "x") == Reading(data="book.txt", crf=True)
    assert parse(Reading, [], "train", "x").data == "fortunes"


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit):
        settings("--help")
    shown = capsys.readouterr().out
    assert "units of a layer (3)" in shown and "a file\n" in shown


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_the_exit_status_after_a_signal_is_128_and_its_number(number, status):
    def run():
        with terminable():
            signal.raise_signal(number)

    assert exit_status(run) == status


def test_the_exit_status_after_an_error_is_1_and_otherwise_0(capsys):
    def fail():
        raise DataError("line 3: wrong")

    assert (exit_status(lambda: None), exit_status(fail)) == (0, 1)
    assert capsys.readouterr().err == "error: line 3: wrong\n"
