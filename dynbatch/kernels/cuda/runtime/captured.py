"""`KernelLaunch`: a launch as a CUDA graph takes it, with its arguments in a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.packing import POINTER, Tables

Extents = tuple[int, ...]


class NotCapturable(Exception):
    """Work that no CUDA graph can hold; the text says which."""


class KernelLaunch(NamedTuple):
    """A launch as a CUDA graph takes it; see `source.of_steps`.

    kernels: the `launch.Kernels` that have it; that module needs this one.
    grid:   as large as a graph's: the number of blocks is a power of two.
    row:    words: how many of the blocks have work, and the packed arguments, without the addresses
            of their tables.
    tables: which belong to the upload of that number.
    """

    kernels: Any
    name: str
    grid: Extents
    block: Extents
    shared: int
    row: bytes
    tables: Tables
    upload: int

    @classmethod
    def of(
        cls, kernels: Any, name: str, grid: Extents, block: Extents, shared: int, data: bytes,
        tables: Tables, upload: int,
    ) -> KernelLaunch:  # fmt: skip
        """A launch with packed arguments; grid and block have three dimensions.

        Raises:
            NotCapturable: the kernel is the user's own.
        """
        if source.is_own(name):  # whose text `source.of_steps` does not know
            raise NotCapturable(f"{source.name_of(name)}, a kernel of the user's own")
        blocks, *across = grid
        row = (
            blocks.to_bytes(POINTER.itemsize, "little")
            + data
            + bytes(-len(data) % POINTER.itemsize)
        )
        return cls(kernels, name, (bucket(blocks), *across), block, shared, row, tables, upload)


def bucket(blocks: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, blocks - 1).bit_length()
