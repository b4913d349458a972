"""The meeting of ranks without MPI: all ask rank 0, then each connects to those below it."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Set
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

from dynbatch.errors import ParallelError
from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.environment import LISTENER, PlaceInRun
from dynbatch.parallel.listening import ends, listening, require_rank_0, tell_neighbours
from dynbatch.parallel.tcp import TcpTransport

NONCE_BYTES = 32
_LENGTH = struct.Struct("!I")
_LINK = struct.Struct("!II")
LARGEST_MESSAGE = 1 << 20

ATTEMPT_SECONDS = 0.5
"""After so long without an answer a rank asks whether rank 0 has told why."""

DATA, VOICE, GUARD = 0, 1, 2
"""Channels: what the connections between two ranks are for."""

LATE = (
    "  fix:  call connect() first and prepare data afterwards, or give all ranks "
    "connect(timeout=600);\n"
    "        if a rank is missing, look whether it was started, or ended with an error of its own"
)
"""What to do where a rank did not come in time."""

Link = tuple[int, int]
"""A rank, and a channel to it."""

Links = dict[int, socket.socket]
"""A socket to each of some ranks."""


def join(membership: PlaceInRun, timeout: float = 60.0) -> TcpTransport:
    """Connect this process to all others of its run.

    Rank 0 listens at the run's address and tells each rank where the others listen. Both ends of a
    connection prove that they know the run's secret (HMAC-SHA256 of the other end's nonce).

    Args:
        timeout: seconds until all must have come.

    Raises:
        ParallelError: rank 0 cannot listen there, not all came in time, or one does not know the
            secret.
    """
    end = time.monotonic() + timeout
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        membership = meet_by_torchrun(membership, timeout)
    with ExitStack() as opened:
        listener = opened.enter_context(_listener(membership))
        links: dict[Link, socket.socket] = {}

        def accept(ranks: range) -> None:
            wanted = {(r, channel) for r in ranks for channel in (DATA, VOICE)}
            while wanted:
                link, peer = _accepted(membership, listener, wanted, end)
                links[link] = opened.enter_context(peer)
                wanted.remove(link)

        def connect(rank: int, address: tuple[str, int]) -> None:
            for channel in (DATA, VOICE):
                peer = _connected(membership, (rank, channel), address, end)
                links[rank, channel] = opened.enter_context(peer)

        # Every pair is connected once: a rank connects to those below it, then accepts those
        # above, so nobody waits for a rank that waits for it.
        if membership.rank == 0:
            accept(range(1, membership.size))
            peers = [links[r, DATA] for r in range(1, membership.size)]
            addresses = [(peer.getpeername()[0], _told(peer)) for peer in peers]
            for peer in peers:
                _tell(peer, addresses)
        else:
            connect(0, membership.address)
            _tell(links[0, DATA], listener.getsockname()[1])
            for rank, (host, port) in enumerate(_told(links[0, DATA])[: membership.rank - 1], 1):
                connect(rank, (host, port))
            accept(range(membership.rank + 1, membership.size))
        for peer in links.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.pop_all()
        listener.close()
    ranks = range(membership.size)
    return TcpTransport(
        membership.rank,
        [links.get((r, DATA)) for r in ranks],
        [links.get((r, VOICE)) for r in ranks],
    )


def join_guards(communicator: Communicator, membership: PlaceInRun, end: float) -> Links:
    """Connect rank 0 to each other one, for their guards. Returns the sockets by rank.

    Where rank 0 listens, and a secret, are told by the communicator, so it serves all transports.

    Args:
        end: when all must have come, in seconds of `time.monotonic`.

    Raises:
        ParallelError: the ranks cannot reach each other by TCP.
    """
    membership = membership._replace(rank=communicator.rank, size=communicator.size)
    if membership.rank:
        name, port, secret = communicator.broadcast_object(None)
        host = "127.0.0.1" if name == socket.gethostname() else name
        address = (host if membership.by_mpi else membership.address[0]), port
        return {0: _connected(membership._replace(secret=secret), (0, GUARD), address, end)}
    address = ("" if membership.by_mpi else membership.address[0]), 0
    with ExitStack() as opened:
        listener = opened.enter_context(_listener(membership._replace(address=address)))
        secret = secrets.token_hex(16)
        told = socket.gethostname(), listener.getsockname()[1], secret
        communicator.broadcast_object(told)
        wanted = {(r, GUARD) for r in range(1, membership.size)}
        links = {}
        while wanted:
            link, peer = _accepted(membership._replace(secret=secret), listener, wanted, end)
            links[link[0]] = opened.enter_context(peer)
            wanted.remove(link)
        opened.pop_all()
        listener.close()
    return links


def meet_by_torchrun(place: PlaceInRun, timeout: float) -> PlaceInRun:
    """The place with a port of its own: torchrun itself listens at MASTER_PORT, with a store of
    PyTorch's, in which rank 0 says where the others find it."""
    from torch.distributed import TCPStore  # where torchrun is, PyTorch is

    store = TCPStore(*place.address, is_master=False, timeout=timedelta(seconds=timeout))
    key = f"dynbatch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if place.rank == 0:
        try:
            with listening(place.address[0], 0, "MASTER_ADDR and a port") as free:
                store.set(key, f"{free.getsockname()[1]} {secrets.token_hex(16)}")
        except ParallelError as error:
            store.set(key, f"none {_first_line(error)}")
            raise
    port, secret = store.get(key).decode().split(maxsplit=1)
    if port == "none":
        raise ends(place, secret)
    return place._replace(address=(place.address[0], int(port)), secret=secret)


def _listener(place: PlaceInRun) -> socket.socket:
    host, port = place.address
    if place.rank:
        host, port = host if host == "127.0.0.1" else "", 0
    elif (inherited := _inherited_listener(port)) is not None:
        return inherited
    try:
        return listening(host, port)
    except ParallelError as error:
        tell_neighbours(place, _first_line(error))
        raise


def _first_line(error: ParallelError) -> str:
    return str(error).partition("\n")[0]


def _inherited_listener(port: int) -> socket.socket | None:
    """The socket that `dynbatch launch` has opened for rank 0, if it is there still."""
    try:
        listener = socket.socket(fileno=int(os.environ.get(LISTENER, "")))
    except (ValueError, OSError):
        return None
    is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not is_listening or listener.getsockname()[1:2] != (port,):
        listener.detach()  # the number is another file's by now
        return None
    listener.set_inheritable(False)
    return listener


def _connected(
    place: PlaceInRun, link: Link, address: tuple[str, int], end: float
) -> socket.socket:
    """A connection to a rank, which may not listen yet.

    Raises:
        ParallelError: rank 0 cannot listen, another program does, or nobody in time.
    """
    rank, channel = link
    while True:
        if rank == 0:
            require_rank_0(place)
        try:
            left = max(0.1, end - time.monotonic())
            peer = socket.create_connection(address, min(4 * ATTEMPT_SECONDS, left))
        except OSError as error:
            if time.monotonic() > end:
                raise ParallelError(
                    f"rank {place.rank} cannot reach rank {rank} at {address[0]}:{address[1]}: "
                    f"{error}.\n"
                    "  rule: rank 0 listens at MASTER_ADDR and MASTER_PORT once it has called "
                    f"connect()\n{LATE}"
                ) from error
            time.sleep(0.02)
            continue
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            _wait_for_answer(place, peer, rank, end)
            proof = _proof(place, _exactly(peer, NONCE_BYTES), (place.rank, channel))
            peer.sendall(_LINK.pack(place.rank, channel) + nonce + proof)
            answer = _exactly(peer, NONCE_BYTES)
        except OSError as error:
            peer.close()
            if rank == 0:
                require_rank_0(place)
            raise _turned_away(place, rank, address, error) from error
        if not hmac.compare_digest(answer, _proof(place, nonce, link)):
            peer.close()
            raise ParallelError(
                f"what listens at {address[0]}:{address[1]} is not rank {rank} of this run.\n"
                "  rule: DYNBATCH_SECRET is the same for all ranks, and no other program has the "
                "port"
            )
        return peer


def _turned_away(
    place: PlaceInRun, rank: int, address: tuple[str, int], error: OSError
) -> ParallelError:
    if isinstance(error, TimeoutError):
        return ParallelError(
            f"rank {place.rank} waited in vain for rank {rank} at {address[0]}:{address[1]}.\n"
            "  rule: all ranks call connect() in time, and no other program listens there\n"
            f"{LATE}", rank
        )  # fmt: skip
    return ParallelError(
        f"rank {rank} turned rank {place.rank} away, or failed while ranks met: {error}.\n"
        "  rule: WORLD_SIZE and DYNBATCH_SECRET are the same for all ranks, and each rank is there "
        "once;\n"
        f"        no other program listens at {address[0]}:{address[1]}\n"
        f"  fix:  compare them: this is rank {place.rank}, with WORLD_SIZE {place.size}",
        rank,
    )


def _wait_for_answer(place: PlaceInRun, peer: socket.socket, rank: int, end: float) -> None:
    """Wait until a rank says something; another program, which has rank 0's port, may say nothing.

    Raises:
        ParallelError: rank 0 tells that it cannot listen.
        OSError:       nothing was said in time.
    """
    while (left := end - time.monotonic()) > ATTEMPT_SECONDS and rank == 0:
        peer.settimeout(ATTEMPT_SECONDS)
        with suppress(TimeoutError):
            peer.recv(1, socket.MSG_PEEK)
            break
        require_rank_0(place)
    peer.settimeout(max(0.1, left))


def _accepted(
    place: PlaceInRun, listener: socket.socket, wanted: Set[Link], end: float
) -> tuple[Link, socket.socket]:
    """The next of the wanted that connects; whoever does not know the secret is sent away."""
    turned_away = 0
    while True:
        listener.settimeout(max(0.1, end - time.monotonic()))
        try:
            peer, _ = listener.accept()
        except TimeoutError as error:
            raise ParallelError(
                f"rank {place.rank} waited in vain for ranks {sorted({r for r, _ in wanted})} of "
                f"{place.size}; connections turned away: {turned_away}.\n"
                "  rule: as many processes are started as WORLD_SIZE says, which is the same for "
                "all, as is\n"
                f"        DYNBATCH_SECRET, and all call connect() in time\n{LATE}"
            ) from error
        peer.settimeout(5.0)
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            peer.sendall(nonce)
            link: Link = _LINK.unpack(_exactly(peer, _LINK.size))
            theirs, proof = _exactly(peer, NONCE_BYTES), _exactly(peer, NONCE_BYTES)
            if hmac.compare_digest(proof, _proof(place, nonce, link)) and link in wanted:
                peer.sendall(_proof(place, theirs, (place.rank, link[1])))
                peer.settimeout(max(0.1, end - time.monotonic()))
                return link, peer
        except OSError:
            pass
        turned_away += 1
        peer.close()


def _proof(place: PlaceInRun, nonce: bytes, link: Link) -> bytes:
    message = nonce + struct.pack("!III", *link, place.size)
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
    """An exact number of bytes from a connection.

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
