"""Ranks of one machine joined by sockets, each to each, with nothing but Python's own library."""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from dynbatch.errors import ParallelError
from dynbatch.parallel.run_log import ENDED, FAILED, LEFT, LOST, RunLog
from dynbatch.parallel.transport import SAME_CALLS, Buffers, Transport, bytes_of, unexpected

HEADER = struct.Struct("!QQ")  # number of the exchange or BETWEEN, bytes that follow

BUFFER_BYTES = 1 << 20
"""What a socket may hold, as far as the system allows: the more, the fewer turns two ranks take."""


class SocketTransport(Transport):
    """Exchanges bytes over a socket for each other rank; see `Transport`.

    A header before each message has the number of the exchange and its length, so that ranks which
    do different things get an error, and do not read one array for another. A message between two
    ranks has no number: a socket keeps the order. How a rank ended it has written into the log
    before its sockets close.

    Args:
        rank:  of this process.
        peers: a connected socket for every other rank, None at its own place.
        log:   of the run.
    """

    name = "sockets"

    def __init__(self, rank: int, peers: Sequence[socket.socket | None], log: RunLog) -> None:
        super().__init__(rank, len(peers))
        self.log = log
        self._peers = {r: peer for r, peer in enumerate(peers) if peer is not None}
        self._alarm, self._alarm_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        for peer in self._peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            peer.setblocking(False)

    def _move(self, number: int, sent: Buffers, received: Buffers) -> None:
        waiting = 0
        for r, peer in self._peers.items():
            arrays = sent[r], received[r]
            moving = _Moving(r, number, *[a if a is None else bytes_of(a) for a in arrays])
            if moving.events():
                waiting += 1
                self._selector.register(peer, moving.events(), moving)
        while waiting:
            for key, events in self._selector.select():
                moving = key.data
                if moving is None:  # the alarm
                    raise self._failure or ParallelError("the run was ended.")
                peer = self._peers[moving.rank]
                if (error := moving.move(peer, events)) is not None:
                    raise self._loss(moving.rank) from error
                if not moving.events():
                    self._selector.unregister(peer)
                    waiting -= 1
                elif moving.events() != key.events:
                    self._selector.modify(peer, moving.events(), moving)

    def _loss(self, rank: int) -> ParallelError:
        """The reason that the connection to a rank ended: its own, or another rank's."""
        failure = self.log.failure()
        if failure is None and rank in self.log.left():
            told = f"rank {rank} left the run, and rank {self.rank} still waits for it."
            return ParallelError(f"{told}\n{SAME_CALLS}", rank)
        if failure is None:
            why = "it was killed, or ended its process at once"
            failure = self.log.note(LOST, rank, f"rank {rank} ended without a word: {why}.")
        return ParallelError(failure.message, failure.rank)

    def interrupt(self, message: str, rank: int | None = None) -> None:
        super().interrupt(message, rank)
        with suppress(OSError):  # closed
            self._alarm_end.send(b"!")

    def fail(self, message: str, rank: int, is_asked: bool = False) -> None:
        self.log.add(ENDED if is_asked else FAILED, rank, message)

    def close(self) -> None:
        failure = self._failure  # which the program may have caught
        if failure is None:
            self.log.add(LEFT, self.rank)
        else:
            self.fail(str(failure), self.rank if failure.rank is None else failure.rank)
        self._selector.close()
        for each in (*self._peers.values(), self._alarm, self._alarm_end):
            each.close()
        self.log.close()


class _Moving:
    """One message to a rank and one from it: the buffers that are left of each."""

    def __init__(
        self, rank: int, number: int, out: memoryview | None, into: memoryview | None
    ) -> None:
        self.rank = rank
        self.number = number
        self.expected = 0 if into is None else into.nbytes
        self.header = bytearray(HEADER.size)
        self.out = [] if out is None else [memoryview(HEADER.pack(number, out.nbytes)), out]
        self.into = [] if into is None else [memoryview(self.header), into]

    def events(self) -> int:
        return selectors.EVENT_READ * bool(self.into) | selectors.EVENT_WRITE * bool(self.out)

    def move(self, peer: socket.socket, events: int) -> OSError | None:
        """Send and receive what the socket takes and has. Returns why the connection has ended.

        Raises:
            ParallelError: the other rank sent something else.
        """
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            if events & selectors.EVENT_WRITE:
                self.out = _after(self.out, peer.sendmsg(self.out))
        except BlockingIOError:
            pass
        except OSError as error:
            return error
        return None

    def _read(self, peer: socket.socket) -> None:
        has_header = len(self.into) == 1
        count = peer.recvmsg_into(self.into)[0]
        if not count:
            raise ConnectionResetError("its connection ended")
        self.into = _after(self.into, count)
        if not has_header and len(self.into) < 2:
            number, length = HEADER.unpack(self.header)
            if (number, length) != (self.number, self.expected):
                raise unexpected(self.rank, length, number, self.expected, self.number)


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The buffers without their first bytes; none that are empty stay in front."""
    while buffers and count >= buffers[0].nbytes:
        count -= buffers[0].nbytes
        buffers = buffers[1:]
    return [buffers[0][count:], *buffers[1:]] if count else buffers
