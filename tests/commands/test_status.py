import signal

import pytest

from dynbatch.commands.status import exit_status
from dynbatch.errors import DataError
from dynbatch.train.interrupts import terminable


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
