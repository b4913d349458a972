"""How ranks without MPI find each other: all ask rank 0, then each connects to those below it."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from dynbatch.errors import ParallelError
from dynbatch.parallel.environment import PlaceInRun
from dynbatch.parallel.tcp import TcpTransport

NONCE_BYTES = 32
_LENGTH = struct.Struct("!I")
LARGEST_MESSAGE = 1 << 20


def join(place: PlaceInRun, timeout: float = 60.0) -> TcpTransport:
    """Connect this process to all others of its run.

    Rank 0 listens at the run's address and tells each rank where the others listen. Both ends of a
    connection prove that they know the run's secret (HMAC-SHA256 of the other end's nonce).

    Args:
        timeout: seconds until all must have come.

    Raises:
        ParallelError: not all came in time, or one does not know the secret.
    """
    end = time.monotonic() + timeout
    with ExitStack() as opened:
        address = place.address if place.rank == 0 else ("", 0)
        listener = opened.enter_context(_listener(address))
        peers: dict[int, socket.socket] = {}

        def accept(count: int) -> None:
            for _ in range(count):
                rank, peer = _accepted(place, listener, peers, end)
                peers[rank] = opened.enter_context(peer)

        def connect(rank: int, address: tuple[str, int]) -> None:
            peers[rank] = opened.enter_context(_connected(place, rank, address, end))

        if place.rank == 0:
            accept(place.size - 1)
            addresses = {r: (peer.getpeername()[0], _told(peer)) for r, peer in peers.items()}
            for peer in peers.values():
                _tell(peer, [addresses[r] for r in range(1, place.size)])
        else:
            connect(0, place.address)
            _tell(peers[0], listener.getsockname()[1])
            for rank, (host, port) in enumerate(_told(peers[0])[: place.rank - 1], 1):
                connect(rank, (host, port))
            accept(place.size - 1 - place.rank)
        for peer in peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.pop_all()
        listener.close()
    return TcpTransport(place.rank, [peers.get(r) for r in range(place.size)])


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(address, backlog=256)
    except OSError as error:
        raise ParallelError(
            f"rank 0 cannot listen at {address[0]}:{address[1]}: {error}.\n"
            "  fix:  choose another MASTER_PORT; MASTER_ADDR is an address of rank 0's machine"
        ) from error


def _connected(place: PlaceInRun, rank: int, address: tuple[str, int], end: float) -> socket.socket:
    """A connection to a rank, which may not listen yet."""
    while True:
        try:
            peer = socket.create_connection(address, max(0.1, end - time.monotonic()))
        except OSError as error:
            if time.monotonic() > end:
                raise ParallelError(
                    f"rank {place.rank} cannot reach rank {rank} at {address[0]}:{address[1]}: "
                    f"{error}."
                ) from error
            time.sleep(0.02)
            continue
        peer.settimeout(max(0.1, end - time.monotonic()))
        nonce = _exactly(peer, NONCE_BYTES)
        own = secrets.token_bytes(NONCE_BYTES)
        peer.sendall(struct.pack("!I", place.rank) + own + _proof(place, nonce, place.rank))
        if not hmac.compare_digest(_exactly(peer, NONCE_BYTES), _proof(place, own, rank)):
            peer.close()
            raise ParallelError(
                f"what listens at {address[0]}:{address[1]} is not rank {rank} of this run.\n"
                "  rule: DYNBATCH_SECRET is the same for all ranks"
            )
        return peer


def _accepted(
    place: PlaceInRun, listener: socket.socket, peers: Mapping[int, socket.socket], end: float
) -> tuple[int, socket.socket]:
    """The next rank that connects; whoever does not know the secret is sent away."""
    while True:
        listener.settimeout(max(0.1, end - time.monotonic()))
        try:
            peer, _ = listener.accept()
        except TimeoutError as error:
            missing = [r for r in range(place.rank + 1, place.size) if r not in peers]
            raise ParallelError(
                f"rank {place.rank} waited in vain for ranks {missing} of {place.size}.\n"
                "  rule: as many processes are started as WORLD_SIZE says\n"
                "  fix:  look whether they ended with an error of their own"
            ) from error
        peer.settimeout(5.0)
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            peer.sendall(nonce)
            (rank,) = struct.unpack("!I", _exactly(peer, 4))
            theirs, proof = _exactly(peer, NONCE_BYTES), _exactly(peer, NONCE_BYTES)
            is_known = hmac.compare_digest(proof, _proof(place, nonce, rank))
            if is_known and place.rank < rank < place.size and rank not in peers:
                peer.sendall(_proof(place, theirs, place.rank))
                peer.settimeout(max(0.1, end - time.monotonic()))
                return rank, peer
        except OSError:
            pass
        peer.close()


def _proof(place: PlaceInRun, nonce: bytes, rank: int) -> bytes:
    message = nonce + struct.pack("!II", rank, place.size)
    return hmac.digest(place.secret.encode(), message, "sha256")


def _tell(peer: socket.socket, value: object) -> None:
    text = json.dumps(value).encode()
    peer.sendall(_LENGTH.pack(len(text)) + text)


def _told(peer: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size))
    if length > LARGEST_MESSAGE:
        raise ParallelError(f"a rank announces {length} bytes of its address.")
    return json.loads(_exactly(peer, length))


def _exactly(peer: socket.socket, count: int) -> bytes:
    """So many bytes of a connection.

    Raises:
        ConnectionError: it ended before.
    """
    parts = []
    while count:
        part = peer.recv(count)
        if not part:
            raise ConnectionError("the other end closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
