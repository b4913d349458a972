"""Ranks as threads of one process, joined by sockets: quick, and all of them can be looked at."""

import hashlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np

from dynbatch.parallel import Communicator
from dynbatch.parallel.communicator import DIRECT_BYTES
from dynbatch.parallel.run_log import RunLog
from dynbatch.parallel.sockets import SocketTransport


def transports(size):
    """A transport for each rank, all joined to each other, with one log."""
    with closing(RunLog()) as log:
        logs = [RunLog(os.dup(log.descriptor)) for _ in range(size)]
    return [SocketTransport(*each) for each in zip(range(size), pairs(size), logs, strict=True)]


def pairs(size):
    """For each rank, a socket to each other one."""
    peers = [[None] * size for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            peers[low][high], peers[high][low] = socket.socketpair()
    return peers


def on_ranks(size, do):
    """The results of do(communicator) on each rank; an error of one is raised here."""

    def run(transport):
        with Communicator(transport) as communicator:
            return do(communicator)

    joined = transports(size) if size > 1 else [None]
    with ThreadPoolExecutor(size) as threads:
        running = [threads.submit(run, transport) for transport in joined]
    return [each.result() for each in running]


def count_messages(communicator, of="_host"):
    """A list, to which the bytes of each array that this rank sends from now on are appended."""
    transport, counted = getattr(communicator, of), []

    move = transport.exchange

    def counted_move(sent, *more):
        counted.extend(each.nbytes for each in sent if each is not None)
        move(sent, *more)

    transport.exchange = counted_move
    return counted


def digest(communicator):
    """A digest of all that the transport moves: both ways of sums, strides, nothing, messages."""
    rank = communicator.rank
    numbers = np.random.default_rng(rank)
    arrays = [numbers.standard_normal(n).astype("f4") for n in (0, 7, DIRECT_BYTES // 4 + 3)]
    arrays.append(numbers.standard_normal((5, 6))[:, ::2])
    communicator.all_reduce(*arrays)
    flat = numbers.standard_normal(9)
    communicator.reduce_scatter(flat, [*[0, 9, 9, 9][: communicator.size], 9])
    communicator.broadcast(flat, root=communicator.size - 1)
    own = np.full(DIRECT_BYTES, rank)
    if rank == 1:  # while others are in the next exchange of all
        communicator.send(own, to=0)
        communicator.exchange({0: own}, {0: (answer := np.zeros(2))})
        own[:2] = answer
    elif rank == 0:
        communicator.receive(own, source=1)
        communicator.exchange({1: own[-2:].astype(float)}, {1: own})
    objects = communicator.gather_objects({rank: "x" * rank})
    told = b"".join(each.tobytes() for each in (*arrays, flat, own)) + repr(objects).encode()
    return hashlib.sha256(told).hexdigest()
