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
    machines = set(communicator.gather_objects(machine()))
    if len(machines) > 1 or None in machines:
        return None
    stride = max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    made = _made(communicator.size * stride) if communicator.rank == 0 else None
    try:
        path = None if made is None else f"/proc/{os.getpid()}/fd/{made}"
        path = communicator.broadcast_object(path)
        whole = None if path is None else _mapped(path, communicator.size * stride)
        if not all(communicator.gather_objects(whole is not None)) or whole is None:
            return None
    finally:
        if made is not None:
            os.close(made)
    return [whole[r * stride : r * stride + nbytes] for r in range(communicator.size)]


def machine() -> tuple[str, str] | None:
    """A text that is equal for two processes only if each can open the other's files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _made(nbytes: int) -> int | None:
    """A descriptor of so much memory, all of it there; None without room, or the right to it."""
    if not hasattr(os, "memfd_create"):
        return None
    with suppress(OSError):
        descriptor = os.memfd_create(NAME)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    return None


def _mapped(path: str, nbytes: int) -> Array | None:
    """Memory of another process, (nbytes,) uint8; None if this one may not open or map it."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return np.frombuffer(mmap.mmap(handle, nbytes), np.uint8)
        finally:
            os.close(handle)
    return None
