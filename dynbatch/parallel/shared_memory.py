"""Memory that all ranks of a run have, where they are on one machine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
    with _path_of_memory(communicator.size * stride if communicator.rank == 0 else 0) as path:
        path = communicator.broadcast_object(path)
        whole = None if path is None else _mapped(path, communicator.size * stride)
        if not all(communicator.gather_objects(whole is not None)) or whole is None:
            return None
    return [whole[r * stride : r * stride + nbytes] for r in range(communicator.size)]


def machine() -> tuple[str, str] | None:
    """A text that is equal for two processes only if each can open the other's files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


@contextmanager
def _path_of_memory(nbytes: int) -> Iterator[str | None]:
    """A path to so much memory, all of it there, inside the block; None without room for it."""
    path = None
    with ExitStack() as opened:
        if nbytes and hasattr(os, "memfd_create"):
            with suppress(OSError):
                descriptor = os.memfd_create(NAME)
                opened.callback(os.close, descriptor)
                os.posix_fallocate(descriptor, 0, nbytes)
                path = f"/proc/{os.getpid()}/fd/{descriptor}"
        yield path


def _mapped(path: str, nbytes: int) -> Array | None:
    """Memory of another process, (nbytes,) uint8; None if this one may not open or map it."""
    with suppress(OSError), open(path, "r+b", buffering=0) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
    return None
