"""`SocketTransport`: an error names the rank that failed first, whenever it failed."""

import threading

import numpy as np
import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel import Communicator
from dynbatch.parallel.run_log import RunLog
from dynbatch.parallel.sockets import HEADER
from tests.parallel.ranks import on_ranks, transports

LARGE = 1 << 22  # bytes: more than sockets hold


def errors_where_the_last_rank(size, ends, lost=()):
    """The error of each rank but the last, which does `ends(its transport)`.

    lost: ranks whose connection to it has ended before they begin.
    """
    *others, last = transports(size)
    for rank in lost:
        last._peers.pop(rank).close()
    errors = [None] * (size - 1)

    def run(rank):
        with pytest.raises(ParallelError) as raised:
            with Communicator(others[rank]) as communicator:
                communicator.all_reduce(np.ones(size * LARGE, np.uint8))
        errors[rank] = raised.value

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(size - 1)]
    for each in ranks:
        each.start()
    ends(last)
    for each in ranks:
        each.join(120)  # on a machine that is busy, or stops this process for a while
        assert not each.is_alive()
    last.interrupt("it has ended")
    last.close()
    return errors


def end_within_an_exchange(transport, reason=None):
    """Send the others half of what they wait for, write the reason into the log, and end."""
    for each in transport._peers.values():
        each.setblocking(True)
        each.sendall(HEADER.pack(1, LARGE) + bytes(LARGE // 2))
    if reason is not None:
        transport.fail(reason, transport.rank)
    for each in transport._peers.values():
        each.close()


def test_a_rank_that_dies_within_an_exchange_is_the_one_that_all_others_name():
    for error in errors_where_the_last_rank(3, end_within_an_exchange):
        assert error.rank == 2 and "rank 2 ended without a word" in str(error)


def test_so_it_is_where_a_full_disk_keeps_it_out_of_the_log(monkeypatch):
    monkeypatch.setattr(RunLog, "add", lambda *_: None)
    first, last = transports(2)
    last._peers[0].close()
    with pytest.raises(ParallelError, match="rank 1 ended without a word") as told:
        Communicator(first).barrier()
    assert told.value.rank == 1
    for each in (first, last):
        each.close()


def test_one_that_is_lost_for_another_is_named_too():
    """Rank 2 is lost for rank 1 only; rank 0 learns it in the midst of large messages."""
    for error in errors_where_the_last_rank(3, lambda _: None, lost=[1]):
        assert error.rank == 2 and "rank 2 ended without a word" in str(error)


def test_a_reason_in_the_log_is_told_after_half_a_message():
    def fails(last):
        end_within_an_exchange(last, "rank 2 failed: ValueError")

    for error in errors_where_the_last_rank(3, fails):
        assert (str(error), error.rank) == ("rank 2 failed: ValueError", 2)


def test_who_caught_the_error_of_another_names_that_one_when_it_leaves():
    def do(communicator):
        if communicator.rank == 1:
            communicator._host.interrupt("rank 2 is frozen.", 2)
            with pytest.raises(ParallelError):
                communicator.barrier()
        elif communicator.rank == 0:
            communicator.receive(np.zeros(1), source=1)

    with pytest.raises(ParallelError, match="rank 2 is frozen") as told:
        on_ranks(3, do)
    assert told.value.rank == 2


def test_a_rank_that_left_in_order_is_told_from_one_that_died():
    def do(communicator):
        if communicator.rank == 0:
            communicator.barrier()

    with pytest.raises(ParallelError, match="rank 1 left the run, and rank 0 still waits") as told:
        on_ranks(2, do)
    assert told.value.rank == 1


def test_an_interrupted_exchange_ends_the_others_and_is_the_last():
    class Interrupted:
        """Ctrl-C arrives while the rank waits."""

        register = close = lambda *_: None

        def select(self):
            raise KeyboardInterrupt

    def do(communicator):
        if communicator.rank == 1:
            communicator._host._selector = Interrupted()
        try:
            communicator.all_reduce(np.ones(LARGE))
        finally:
            if communicator.rank == 1:
                with pytest.raises(ParallelError, match="cut off by KeyboardInterrupt"):
                    communicator.barrier()

    with pytest.raises(ParallelError, match=r"rank 1 was interrupted \(Ctrl-C\)") as told:
        on_ranks(2, do)
    assert told.value.rank == 1


def test_a_thread_ends_an_exchange_that_waits():
    def do(communicator):
        if communicator.rank == 0:
            communicator._host.interrupt("rank 1 is frozen.", 1)
            communicator.barrier()

    with pytest.raises(ParallelError, match="rank 1 is frozen") as told:
        on_ranks(2, do)
    assert told.value.rank == 1
