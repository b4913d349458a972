from functools import partial

import pytest
from tqdm import tqdm

from dynbatch.train import progress as module
from dynbatch.train.progress import COLUMNS, Progress

LONG = {"loss": 12.3456, "peak_bytes": 112_300_000, "planned_bytes": 1, "padded_bytes": 485_600_000}


@pytest.fixture(autouse=True)
def each_state_is_printed(monkeypatch):
    monkeypatch.setattr(module, "tqdm", partial(tqdm, mininterval=0))


class Batches:
    def num_batches(self, epoch):
        return 4 + epoch

    def epoch(self, epoch):
        return [["a"]] * (4 + epoch)


class Streamed:
    def epoch(self, epoch):
        yield from Batches().epoch(epoch)


class Listed:
    def epoch(self, epoch):
        return Batches().epoch(0)


def shown(capsys):
    """The states of the bar, one after the other."""
    return capsys.readouterr().err.replace("\n", "\r").split("\r")


def run(batches, num_epochs, epoch=0, position=0, is_shown=True, record=LONG):
    with Progress(batches, num_epochs, epoch, position, is_shown) as progress:
        for number in range(epoch, num_epochs):
            progress.begin_epoch(number)
            for batch in list(batches.epoch(number))[position if number == epoch else 0 :]:
                progress.advance(len(batch), record)


@pytest.mark.parametrize("batches", [Batches(), Listed()])
def test_it_counts_the_batches_of_all_epochs(batches, capsys):
    run(batches, 3)
    states = shown(capsys)
    assert any("epoch 3/3 100%|" in state for state in states)
    first_of_last = next(state for state in states if "epoch 3/3" in state)
    assert "epoch 3/3   0%" not in first_of_last
    assert " left, loss 12.346, " in first_of_last


def test_a_resumed_run_begins_where_it_was(capsys):
    run(Batches(), 2, epoch=1, position=1)  # 4 and 1 of 9 are done
    assert "56%" in next(state for state in shown(capsys) if "epoch 2/2" in state)


def test_loss_speed_and_memory_fit_80_columns(capsys):
    run(Batches(), 100, epoch=97)
    states = [state for state in shown(capsys) if "epoch" in state]
    assert any("sent/s, 112 MB, padded 486" in state for state in states)
    assert max(len(state) for state in states) <= COLUMNS


def test_memory_stays_beside_updates_that_do_not_tell_it(capsys):
    with Progress(Batches(), 1, 0, 0, True) as progress:
        for record in ({}, LONG, {"loss": 1.0, "peak_bytes": 5}):
            progress.advance(1, record)
    last = [state for state in shown(capsys) if "epoch" in state][-1]
    assert "loss 1.000" in last and "112 MB, padded 486" in last


def test_an_unknown_number_of_batches_is_counted(capsys):
    run(Streamed(), 1)
    assert any("epoch 1/1 4 batches, loss 12.346" in state for state in shown(capsys))


def test_a_hidden_bar_prints_nothing_and_asks_for_no_batches(capsys):
    class Unasked:
        def epoch(self, epoch):
            raise AssertionError

    with Progress(Unasked(), 2, 0, 0, False) as progress:
        progress.advance(1, LONG)
    assert capsys.readouterr().err == ""
