import signal
import threading

import pytest

from dynbatch.train.interrupts import deferred_interrupt


def test_interrupt_waits_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("block")
        done.append("after")
    assert done == ["block"]


def test_handler_of_the_program_is_put_back_and_called():
    calls = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_error_of_the_block_comes_first():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_use_it():
    done = []

    def work():
        with deferred_interrupt():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
