"""Ranks joined by TCP, each to each, with nothing but Python's own library."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dynbatch.errors import ParallelError
from dynbatch.parallel.transport import Buffer

HEADER = struct.Struct("!4sQQ")  # kind, number of the exchange, bytes that follow
DATA, FAILED = b"data", b"fail"

LAST_WORDS_SECONDS = 1.0
"""How long a rank that failed waits for the others to have read why."""


class TcpTransport:
    """Exchanges bytes over a socket for each other rank; see `Transport`.

    A header before each message has the number of the exchange and its length, so that ranks which
    do different things get an error, and do not read one array for another.

    Args:
        rank:  of this process.
        peers: a connected socket for every other rank, None at its own place.
    """

    name = "tcp"

    def __init__(self, rank: int, peers: Sequence[socket.socket | None]) -> None:
        self.rank = rank
        self.size = len(peers)
        self._peers = {r: peer for r, peer in enumerate(peers) if peer is not None}
        self._number = 0
        self._alarm, self._alarm_end = socket.socketpair()
        self._failure: str | None = None
        for peer in self._peers.values():
            peer.setblocking(False)

    def exchange(self, sent: Sequence[Buffer | None], received: Sequence[Buffer | None]) -> None:
        self._number += 1
        with selectors.DefaultSelector() as selector:
            selector.register(self._alarm, selectors.EVENT_READ)
            waiting = {}
            for r, peer in self._peers.items():
                out, into = _bytes(sent[r]), _bytes(received[r])
                moving = _Moving(r, self._number, out, into)
                if moving.events():
                    waiting[r] = moving
                    selector.register(peer, moving.events(), r)
            while waiting:
                for key, events in selector.select():
                    if key.data is None:
                        raise ParallelError(self._failure or "the run was ended.")
                    moving, peer = waiting[key.data], self._peers[key.data]
                    moving.move(peer, events)
                    if not moving.events():
                        selector.unregister(peer)
                        del waiting[key.data]
                    elif moving.events() != key.events:
                        selector.modify(peer, moving.events(), key.data)

    def interrupt(self, message: str) -> None:
        """End the exchange that runs now, or the next one, by an error; from any thread."""
        self._failure = message
        self._alarm_end.send(b"!")

    def fail(self, message: str) -> None:
        text = message.encode()
        end = time.monotonic() + LAST_WORDS_SECONDS
        for peer in self._peers.values():
            with suppress(OSError):  # it has ended, or will see that this one has
                peer.settimeout(1.0)
                peer.sendall(HEADER.pack(FAILED, self._number, len(text)) + text)
                peer.shutdown(socket.SHUT_WR)
        for peer in self._peers.values():  # to close with bytes unread would drop what was sent
            with suppress(OSError):
                while (left := end - time.monotonic()) > 0:
                    peer.settimeout(left)
                    if not peer.recv(1 << 16):
                        break

    def close(self) -> None:
        for each in (*self._peers.values(), self._alarm, self._alarm_end):
            each.close()


class _Moving:
    """One message to a rank and one from it, as far as they have come."""

    def __init__(
        self, rank: int, number: int, out: memoryview | None, into: memoryview | None
    ) -> None:
        self.rank = rank
        self.number = number
        header = b"" if out is None else HEADER.pack(DATA, number, out.nbytes)
        self.out = [memoryview(header), out] if out is not None else []
        self.out = [each for each in self.out if each.nbytes]
        self.into = into
        self.header = memoryview(bytearray(HEADER.size))
        self.header_left = self.header if into is not None else self.header[:0]

    def events(self) -> int:
        reads = self.header_left.nbytes or (self.into is not None and self.into.nbytes)
        return selectors.EVENT_READ * bool(reads) | selectors.EVENT_WRITE * bool(self.out)

    def move(self, peer: socket.socket, events: int) -> None:
        """Send and receive what the socket takes and has.

        Raises:
            ParallelError: the other rank ended, failed or sent something else.
        """
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            if events & selectors.EVENT_WRITE and self.out:
                self._write(peer)
        except BlockingIOError:
            pass
        except OSError as error:
            raise ParallelError(f"rank {self.rank} was lost: {error}.") from error

    def _write(self, peer: socket.socket) -> None:
        try:
            count = peer.sendmsg(self.out)
        except (BrokenPipeError, ConnectionResetError):  # why is among what it sent before
            self.out = []
            self.header_left = self.header if self.into is None else self.header_left
            return
        while self.out and count >= self.out[0].nbytes:
            count -= self.out.pop(0).nbytes
        if count:
            self.out[0] = self.out[0][count:]

    def _read(self, peer: socket.socket) -> None:
        if self.header_left.nbytes:
            self.header_left = self.header_left[_received(peer, self.header_left, self.rank) :]
            if self.header_left.nbytes:
                return
            self._check(peer)
        if self.into is not None and self.into.nbytes:
            self.into = self.into[_received(peer, self.into, self.rank) :]

    def _check(self, peer: socket.socket) -> None:
        kind, number, length = HEADER.unpack(self.header)
        if kind == FAILED:
            peer.settimeout(1.0)
            with peer.makefile("rb") as stream:
                text = stream.read(length).decode(errors="replace")
            raise ParallelError(text)
        expected = self.into.nbytes if self.into is not None else 0
        if (kind, number, length) != (DATA, self.number, expected):
            raise ParallelError(
                f"rank {self.rank} sent {length} bytes in its exchange {number}, and this rank "
                f"expected {expected} in its exchange {self.number}.\n"
                "  rule: all ranks call the same methods in the same order, with arrays of the "
                "same shapes\n"
                "  fix:  do not communicate inside `if communicator.rank == ...`"
            )


def _received(peer: socket.socket, into: memoryview, rank: int) -> int:
    count = peer.recv_into(into)
    if not count:
        raise ParallelError(
            f"rank {rank} ended without a word: it was killed, or left the run before this one."
        )
    return count


def _bytes(array: Buffer | None) -> memoryview | None:
    return None if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
