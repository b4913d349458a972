import signal
import threading

import pytest

from dynbatch.interrupts import Terminated, deferred_interrupt, terminable


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_are_raised_and_then_left_as_they_were(number):
    with pytest.raises(Terminated) as caught, terminable():
        signal.raise_signal(number)
    assert (caught.value.code, caught.value.number) == (128 + number, number)
    assert isinstance(caught.value, SystemExit)
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_they_wait_for_the_end_of_a_block_too(number):
    done = []
    with pytest.raises(Terminated), terminable():
        with deferred_interrupt():
            signal.raise_signal(number)
            done.append("block")
        done.append("after")
    assert done == ["block"]


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None])
def test_signals_that_the_program_handles_or_ignores_stay_its_own(own):
    before = signal.signal(signal.SIGHUP, own)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGHUP) is own
            with deferred_interrupt():
                signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is own
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone():
    done = []

    def work():
        with terminable():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.SIG_DFL]
