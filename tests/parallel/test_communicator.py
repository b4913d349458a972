"""`Communicator`: sums in the order of ranks, copies, messages, and errors of ranks that differ."""

import os
from functools import reduce

import numpy as np
import pytest

from dynbatch.errors import ArgumentError, ParallelError
from dynbatch.parallel.communicator import DIRECT_BYTES, Communicator
from tests.forks import in_child
from tests.parallel.ranks import on_ranks, transports

LARGE = DIRECT_BYTES // 4 + 3  # floats, of which the parts are uneven


def of_rank(rank, length, dtype):
    return np.random.default_rng(rank).standard_normal(length).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 7, LARGE])
def test_sums_have_the_bits_of_adding_in_the_order_of_ranks(size, length):
    def do(communicator):
        arrays = [of_rank(communicator.rank, length, dtype) for dtype in ("float32", "float64")]
        arrays.append(np.full((2, 3), communicator.rank + 1, np.float32)[:, ::2])
        communicator.all_reduce(*arrays)
        return arrays

    given = [[of_rank(rank, length, dtype) for rank in range(size)] for dtype in ("f4", "f8")]
    wanted = [reduce(np.add, each) for each in given]
    for single, double, strided in on_ranks(size, do):
        np.testing.assert_array_equal(single, wanted[0], strict=True)
        np.testing.assert_array_equal(double, wanted[1], strict=True)
        np.testing.assert_array_equal(strided, np.full((2, 2), size * (size + 1) / 2))


def test_parts_of_any_length_are_reduced_and_gathered():
    bounds = [0, 2, 2, 9]

    def do(communicator):
        array = np.arange(9.0) * (communicator.rank + 1)
        communicator.reduce_scatter(array, bounds)
        own = array[bounds[communicator.rank] : bounds[communicator.rank + 1]].copy()
        communicator.all_gather(array, bounds)
        return own, array

    for rank, (own, whole) in enumerate(on_ranks(3, do)):
        np.testing.assert_array_equal(own, 6 * np.arange(9.0)[bounds[rank] : bounds[rank + 1]])
        np.testing.assert_array_equal(whole, 6 * np.arange(9.0))


@pytest.mark.parametrize("root", [0, 2])
def test_all_ranks_get_what_one_has(root):
    def do(communicator):
        small, large = np.full(2, communicator.rank), of_rank(communicator.rank, LARGE, "f4")
        communicator.broadcast(small, large, root=root)
        return small, large, communicator.broadcast_object({"rank": communicator.rank}, root)

    for small, large, value in on_ranks(3, do):
        np.testing.assert_array_equal(small, np.full(2, root))
        np.testing.assert_array_equal(large, of_rank(root, LARGE, "f4"))
        assert value == {"rank": root}


def test_objects_come_in_the_order_of_ranks():
    gathered = on_ranks(
        3, lambda communicator: communicator.gather_objects("x" * communicator.rank)
    )
    assert gathered == [["", "x", "xx"]] * 3


def test_one_rank_sends_to_another():
    def do(communicator):
        array = np.full(LARGE, communicator.rank, np.float32)
        if communicator.rank == 1:
            communicator.send(array, to=0)
        else:
            communicator.receive(array, source=1)
        return array[0]

    assert on_ranks(2, do) == [1, 1]


def test_two_ranks_send_to_each_other_while_others_are_elsewhere():
    def do(communicator):
        rank, large, small = communicator.rank, np.zeros(1 << 18), np.zeros(1)
        if rank == 1:
            communicator.send(np.arange(float(large.size)), to=2)  # more than a socket holds
            communicator.exchange({2: np.full(1, 5.0)}, {2: small})
        elif rank == 2:
            communicator.receive(large, source=1)
            communicator.exchange({1: large[7:8]}, {1: small})
        communicator.barrier()  # rank 0 has waited there
        if rank == 0:
            communicator.send(np.full(1, 3.0), to=2)
        elif rank == 2:
            communicator.receive(small, source=0)
        return small[0], communicator.gather_objects(rank)

    assert on_ranks(3, do) == [(0, [0, 1, 2]), (7, [0, 1, 2]), (3, [0, 1, 2])]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("send", "rank 1 sent 8 bytes in a message between the two, and .* 1 in its exchange 1"),
        ("receive", "rank 0 sent 1 bytes in its exchange 1, and .* 8 in a message between the two"),
    ],
)
def test_a_message_of_one_side_alone_is_told(message, told):
    def do(communicator):
        if communicator.rank == 1:
            getattr(communicator, message)(np.zeros(1), 0)
        communicator.barrier()

    with pytest.raises(ParallelError, match=told):  # on the other rank as its last words
        on_ranks(2, do)


def test_no_rank_sends_to_itself_or_to_one_that_is_not_there():
    with pytest.raises(ArgumentError, match="rank 0 is given on rank 0 of 1"):
        on_ranks(1, lambda communicator: communicator.send(np.zeros(1), to=0))


def test_ranks_that_differ_are_told_so():
    def do(communicator):
        communicator.all_reduce(np.zeros(3 + communicator.rank))

    with pytest.raises(ParallelError, match=r"rank [01] sent (32|24) bytes .* expected (24|32)"):
        on_ranks(2, do)


def test_an_error_of_one_rank_reaches_the_others():
    seen = []

    def do(communicator):
        if communicator.rank == 1:
            raise ValueError("no such word")
        try:
            communicator.barrier()
        except ParallelError as error:
            seen.append(str(error))

    with pytest.raises(ValueError, match="no such word"):
        on_ranks(3, do)
    assert "rank 1 failed: ValueError: no such word" in seen
    assert all("rank 1" in each for each in seen)


def test_an_error_that_all_ranks_raise_lets_a_slower_one_read_first():
    first, second = [Communicator(transport) for transport in transports(2)]
    failure = ValueError("of all")
    failure.on_all_ranks = True
    with pytest.raises(ValueError, match="of all"), second:
        second.send(np.ones(1), to=0)
        raise failure
    received = np.zeros(1)
    with first:
        first.receive(received, source=1)
    assert received == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_neither_ends_the_run_nor_takes_part():
    def forked(communicator):
        with communicator:  # which closes it
            with pytest.raises(ParallelError, match="a forked process of rank 0 communicates"):
                communicator.barrier()
        communicator.fail_by(ValueError("of the child"))
        return True

    def do(communicator):
        if communicator.rank == 0:
            assert in_child(lambda: forked(communicator))
        communicator.barrier()
        if communicator.rank == 0:
            raise ValueError("of the rank")
        with pytest.raises(ParallelError, match="rank 0 failed: ValueError: of the rank"):
            communicator.barrier()

    with pytest.raises(ValueError, match="of the rank"):
        on_ranks(2, do)


def test_a_closed_communicator_moves_nothing():
    def do(communicator):
        communicator.close()
        communicator.barrier()

    with pytest.raises(
        ParallelError, match=r"rank [01] of 2\) is closed(?s:.*)fix:  exchange inside"
    ):
        on_ranks(2, do)
