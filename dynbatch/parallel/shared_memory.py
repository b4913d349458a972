"""Memory that all ranks of a run have, where they are on one machine."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from dynbatch.backend import Array
from dynbatch.parallel.communicator import Communicator

NAME = "dynbatch"


def shared_blocks(communicator: Communicator, nbytes: int) -> list[Array] | None:
    """A block of memory for each rank, all of which every rank may read and write.

    It is zero at first, lies in no file, and is given back when no rank has an array of it any
    more, however the ranks end.

    Args:
        nbytes: bytes of a block.

    Returns:
        (nbytes,) uint8 in the order of ranks, or None, on all ranks: they are not on one machine,
        it has no room, or it is no Linux.
    """
    machines = set(communicator.gather_objects(_machine()))
    if len(machines) > 1 or None in machines:
        return None
    stride = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    made = _made(communicator.size * stride) if communicator.rank == 0 else None
    opened = None
    try:
        there = None if made is None else (os.getpid(), made)
        there = communicator.broadcast_object(there)
        opened = None if there is None else _opened(*there)
        if not all(communicator.gather_objects(opened is not None)) or opened is None:
            return None
        whole = np.frombuffer(mmap.mmap(opened, communicator.size * stride), np.uint8)
    finally:
        for each in (made, opened):
            if each is not None:
                os.close(each)
    return [whole[r * stride : r * stride + nbytes] for r in range(communicator.size)]


def _machine() -> tuple[str, str] | None:
    """What is equal for two processes only if each can open what the other has open."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _made(nbytes: int) -> int | None:
    """A descriptor of so much memory, all of it there; None without room."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create(NAME)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _opened(process: int, descriptor: int) -> int | None:
    """This process's own descriptor of what another has open; None if it may not."""
    with suppress(OSError):
        return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    return None
