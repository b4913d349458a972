from contextlib import closing
from functools import partial

import pytest
from tqdm import tqdm

import dynbatch as db
from dynbatch.kernels.c.runtime import library
from dynbatch.train import progress as module
from dynbatch.train.progress import COLUMNS, Progress, tell_backend

LONG = {"loss": 12.3456, "peak_bytes": 112_300_000, "planned_bytes": 1, "padded_bytes": 485_600_000}


@pytest.fixture(autouse=True)
def each_state_is_printed(monkeypatch):
    monkeypatch.setattr("tqdm.tqdm", partial(tqdm, mininterval=0))


def shown(capsys):
    """The states of the bar, one after the other."""
    return capsys.readouterr().err.replace("\n", "\r").split("\r")


def run(lengths, epoch=0, position=0, is_shown=True, is_known=True):
    """A run of epochs of so many mini-batches, from a place in it."""
    with closing(Progress(len(lengths), is_shown)) as progress:
        for number in range(epoch, len(lengths)):
            progress.begin_epoch(number, position, lengths[number] if is_known else 0)
            for _ in range(position, lengths[number]):
                progress.advance(1, LONG)
            position = 0


def test_it_counts_the_batches_of_all_epochs(capsys):
    run([4, 4, 4])
    states = shown(capsys)
    assert "epoch 1/3   8%" in next(state for state in states if "left, loss" in state)
    assert "epoch 3/3  75%" in next(state for state in states if "epoch 3/3" in state)
    assert any("epoch 3/3 100%|" in state for state in states)
    assert any(" left, loss 12.346, " in state for state in states)


def test_epochs_of_other_lengths_end_at_the_whole(capsys):
    run([4, 5, 3])
    assert "100%" in [state for state in shown(capsys) if "epoch 3/3" in state][-1]


def test_a_resumed_run_begins_where_it_was(capsys):
    run([4, 4], epoch=1, position=1)
    assert "62%" in next(state for state in shown(capsys) if "epoch 2/2" in state)


def test_loss_speed_and_memory_fit_80_columns(capsys):
    run([4] * 100, epoch=97)
    states = [state for state in shown(capsys) if "epoch" in state]
    assert any("sent/s, 112 MB, padded 486" in state for state in states)
    assert max(len(state) for state in states) <= COLUMNS


def test_where_tokens_are_counted_their_number_a_second_is_told(capsys):
    with closing(Progress(1, True)) as progress:
        progress.begin_epoch(0, 0, 2)
        progress.advance(1, {"loss": 1.0, "tokens": 12_345, "peak_bytes": 5})
    last = [state for state in shown(capsys) if "epoch" in state][-1]
    assert " tok/s" in last and "sent/s" not in last


def test_validation_between_epochs_does_not_slow_the_run_down(capsys, monkeypatch):
    times = iter([0.0, 0.0, 2.0, 100.0, 102.0])  # made, epoch 1, a batch, epoch 2, a batch
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(times))
    with closing(Progress(2, True)) as progress:
        for epoch in range(2):
            progress.begin_epoch(epoch, 0, 1)
            progress.advance(6, {"loss": 1.0, "peak_bytes": 5})
    assert " 3 sent/s" in [state for state in shown(capsys) if "loss" in state][-1]


def test_memory_stays_beside_updates_that_do_not_tell_it(capsys):
    with closing(Progress(1, True)) as progress:
        progress.begin_epoch(0, 0, 4)
        for record in ({}, LONG, {"loss": 1.0, "peak_bytes": 5}):
            progress.advance(1, record)
    last = [state for state in shown(capsys) if "epoch" in state][-1]
    assert "loss 1.000" in last and "112 MB, padded 486" in last


def test_an_unknown_number_of_batches_is_counted(capsys):
    run([4], is_known=False)
    assert any("epoch 1/1 4 batches, loss 12.346" in state for state in shown(capsys))


def test_a_hidden_bar_prints_nothing(capsys):
    run([4], is_shown=False)
    assert capsys.readouterr().err == ""


def test_a_run_without_c_kernels_says_why_and_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "no C compiler: install gcc")
    tell_backend(db.Parameter([1.0]))
    told = capsys.readouterr().err
    assert told.startswith("dynbatch: NumPy runs in place of C kernels")
    assert told.replace("\n", " ").endswith("no C compiler: install gcc ")
    assert max(map(len, told.splitlines())) <= 80


def test_a_run_with_c_kernels_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "")
    tell_backend(db.Parameter([1.0]))
    assert capsys.readouterr().err == ""


def test_a_checkpoint_counts_once_in_the_time_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with closing(Progress(2, True)) as progress:
        for epoch in range(2):
            progress.begin_epoch(epoch, 0, 10)
            for _ in range(10):
                now[0] += 1.0
                progress.advance(1, LONG)
            now[0] += 20.0  # it is saved
    first = next(state for state in shown(capsys) if "epoch 2/2  55%" in state)
    assert "00:27 left" in first  # nine batches at 30 seconds for ten: the first does not count


def test_the_first_update_which_compiles_is_in_neither_speed_nor_time_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    with closing(Progress(1, True)) as progress:
        progress.begin_epoch(0, 0, 10)
        for seconds in (40.0, 2.0, 2.0):
            now[0] += seconds
            progress.advance(6, LONG)
    first, *_, last = [state for state in shown(capsys) if "loss" in state]
    assert "? left" in first and " 0 sent/s" in first
    assert "00:14 left" in last and " 3 sent/s" in last
