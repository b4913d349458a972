"""Ranks joined by TCP, each to each, with nothing but Python's own library."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from dynbatch.errors import ParallelError
from dynbatch.parallel.transport import (
    Buffer,
    NumberedTransport,
    bytes_of,
    error_of,
    last_words,
    unexpected,
)

HEADER = struct.Struct("!QQ")  # number of the exchange or BETWEEN, bytes that follow

LEFT = b"left\n"
"""The last words of a rank that ended in order."""

LAST_WORDS_SECONDS = 1.0
"""How long the reason is waited for when a rank's connection has ended."""


class TcpTransport(NumberedTransport):
    """Exchanges bytes over two sockets for each other rank; see `Transport`.

    The first socket is for data. A header before each message has the number of the exchange and
    its length, so that ranks which do different things get an error, and do not read one array for
    another. A message between two ranks has no number: a socket keeps the order. The second is for
    last words: they arrive also if the message that was under way will never be whole.

    Args:
        rank:   of this process.
        peers:  a connected socket for every other rank, None at its own place.
        voices: another one each.
    """

    name = "tcp"

    def __init__(
        self,
        rank: int,
        peers: Sequence[socket.socket | None],
        voices: Sequence[socket.socket | None],
    ) -> None:
        super().__init__(rank, len(peers))
        self._peers = {r: peer for r, peer in enumerate(peers) if peer is not None}
        self._voices = {r: _Voice(r, voice) for r, voice in enumerate(voices) if voice is not None}
        self._alarm, self._alarm_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        for peer in self._peers.values():
            peer.setblocking(False)
        for voice in self._voices.values():
            voice.socket.setblocking(False)
            self._selector.register(voice.socket, selectors.EVENT_READ, voice)

    def _move(
        self, number: int, sent: Sequence[Buffer | None], received: Sequence[Buffer | None]
    ) -> None:
        waiting = 0
        for r, peer in self._peers.items():
            moving = _Moving(r, number, _bytes(sent[r]), _bytes(received[r]))
            if moving.events():
                waiting += 1
                self._selector.register(peer, moving.events(), moving)
        while waiting:
            for key, events in self._selector.select():
                moving = key.data
                if not isinstance(moving, _Moving):
                    self._listen(moving)
                    continue
                peer = self._peers[moving.rank]
                if (error := moving.move(peer, events)) is not None:
                    raise self._loss(moving.rank, error)
                if not moving.events():
                    self._selector.unregister(peer)
                    waiting -= 1
                elif moving.events() != key.events:
                    self._selector.modify(peer, moving.events(), moving)

    def _listen(self, voice: _Voice | None) -> None:
        """Take what a rank says beside its data, or what this process was told by a thread.

        Raises:
            ParallelError: the run failed.
        """
        if voice is None:
            raise self._failure or ParallelError("the run was ended.")
        words = voice.read()
        if voice.has_ended:
            self._selector.unregister(voice.socket)
        if words not in (b"", LEFT):
            raise error_of(words)

    def _loss(self, rank: int, error: OSError) -> ParallelError:
        """The reason that the connection to a rank ended: its last words, or another rank's."""
        end = time.monotonic() + LAST_WORDS_SECONDS
        lost = self._voices[rank]
        while not lost.has_ended and (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if not isinstance(key.data, _Moving):
                    self._listen(key.data)
        if lost.words == LEFT:
            return ParallelError(
                f"rank {rank} left the run, and rank {self.rank} still waits for it.\n"
                "  rule: all ranks call the same methods in the same order\n"
                "  fix:  inside `if communicator.rank == ...` only send, receive and exchange", rank
            )  # fmt: skip
        why = "it was killed, or ended its process at once" if lost.has_ended else str(error)
        return ParallelError(f"rank {rank} ended without a word: {why}.", rank)

    def interrupt(self, message: str, rank: int | None = None) -> None:
        super().interrupt(message, rank)
        with suppress(OSError):  # closed
            self._alarm_end.send(b"!")

    def fail(self, message: str, rank: int | None = None) -> None:
        self._say(last_words(message, self.rank if rank is None else rank))

    def close(self) -> None:
        failure = self._failure  # which the program may have caught
        self._say(LEFT if failure is None else last_words(str(failure), failure.rank))
        self._selector.close()
        for each in (*self._peers.values(), self._alarm, self._alarm_end):
            each.close()
        for voice in self._voices.values():
            voice.socket.close()

    def _say(self, words: bytes) -> None:
        """Say the last words to all others; the first ones count."""
        for voice in self._voices.values():
            with suppress(OSError):  # the rank has ended, or something was said before
                voice.socket.settimeout(LAST_WORDS_SECONDS)
                voice.socket.sendall(words)
                voice.socket.shutdown(socket.SHUT_WR)


class _Voice:
    """The messages of a rank beside its data: a line, its last words."""

    def __init__(self, rank: int, voice: socket.socket) -> None:
        self.rank = rank
        self.socket = voice
        self.words = b""
        self.has_ended = False

    def read(self) -> bytes:
        """The whole line, once; nothing before it is there."""
        try:
            part = self.socket.recv(1 << 16)
        except BlockingIOError:
            return b""
        except OSError:
            part = b""
        self.words += part
        self.has_ended = not part
        return self.words if part.endswith(b"\n") else b""


class _Moving:
    """One message to a rank and one from it, as far as they have come."""

    def __init__(
        self, rank: int, number: int, out: memoryview | None, into: memoryview | None
    ) -> None:
        self.rank = rank
        self.number = number
        header = b"" if out is None else HEADER.pack(number, out.nbytes)
        self.out = [memoryview(header), out] if out is not None else []
        self.out = [each for each in self.out if each.nbytes]
        self.into = into
        self.header = memoryview(bytearray(HEADER.size))
        self.header_left = self.header if into is not None else self.header[:0]

    def events(self) -> int:
        reads = self.header_left.nbytes or (self.into is not None and self.into.nbytes)
        return selectors.EVENT_READ * bool(reads) | selectors.EVENT_WRITE * bool(self.out)

    def move(self, peer: socket.socket, events: int) -> OSError | None:
        """Send and receive what the socket takes and has. Returns why the connection has ended.

        Raises:
            ParallelError: the other rank sent something else.
        """
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            if events & selectors.EVENT_WRITE and self.out:
                self._write(peer)
        except BlockingIOError:
            pass
        except OSError as error:
            return error
        return None

    def _write(self, peer: socket.socket) -> None:
        count = peer.sendmsg(self.out)
        while self.out and count >= self.out[0].nbytes:
            count -= self.out.pop(0).nbytes
        if count:
            self.out[0] = self.out[0][count:]

    def _read(self, peer: socket.socket) -> None:
        if self.header_left.nbytes:
            self.header_left = self.header_left[_received(peer, self.header_left) :]
            if self.header_left.nbytes:
                return
            self._check()
        if self.into is not None and self.into.nbytes:
            self.into = self.into[_received(peer, self.into) :]

    def _check(self) -> None:
        number, length = HEADER.unpack(self.header)
        expected = self.into.nbytes if self.into is not None else 0
        if (number, length) != (self.number, expected):
            raise unexpected(self.rank, length, number, expected, self.number)


def _received(peer: socket.socket, into: memoryview) -> int:
    count = peer.recv_into(into)
    if not count:
        raise ConnectionResetError("its connection ended")
    return count


def _bytes(array: Buffer | None) -> memoryview | None:
    return None if array is None else bytes_of(array)
