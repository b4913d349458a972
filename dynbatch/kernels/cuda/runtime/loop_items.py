"""`KernelItem` and `ProductItem`: what each step of a prepared loop starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.cuda.runtime.captured import KernelLaunch, NotCapturable
from dynbatch.kernels.cuda.runtime.cublas import Handles, from_tables
from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.cuda.runtime.packing import HEADER_WORDS, Tables, row_addresses
from dynbatch.kernels.cuda.runtime.staging import Upload

Extent = int | Array
"""A number, or an array of one for each step."""

Start = Callable[..., None]


class KernelItem(NamedTuple):
    """A kernel in each step: its arguments in rows of words.

    upload: the number of that which brings up the tables.
    kept:   the arguments, whose arrays live until the loop has been started.
    """

    kernels: Kernels
    name: str
    grid: tuple[Extent, ...]
    block: tuple[Extent, ...]
    shared: int
    words: Array
    tables: Tables
    upload: int
    kept: Sequence[object]

    def __str__(self) -> str:
        return f"kernel {self.name}"

    def at(self, step: int) -> KernelLaunch:
        grid, block = [
            tuple([int(e[step]) if isinstance(e, np.ndarray) else e for e in sizes])
            for sizes in (self.grid, self.block)
        ]
        data = self.words[step, HEADER_WORDS:].tobytes()
        return KernelLaunch.of(
            self.kernels, self.name, grid, block, self.shared, data, self.tables, self.upload
        )

    def place_tables(self, upload: Upload) -> None:
        if self.tables:
            upload.require(self.upload)
        for word, offset in self.tables:
            self.words[:, HEADER_WORDS + word] = upload.base + offset

    def ready(self, count: int, upload: Upload, stream: int) -> tuple[Start, Sequence[Extent]]:
        """The function that starts a step, and its arguments; `count` launches are counted."""
        kernels = self.kernels
        kernel = kernels.loaded(self.name)
        kernel.allow(self.shared)
        self.place_tables(upload)
        kernels.launches[self.name] += count
        rows = row_addresses(self.words)
        numbers = (kernel.function, *self.grid, *self.block, self.shared, stream, 0, rows)
        return kernels.driver_launch, numbers


class ProductItem(NamedTuple):
    """A product of cuBLAS in each step, `function(handle, *args)`.

    upload: where the operands among `args` are places of tables of pointers, its number; else -1.
    """

    function: Start
    args: Sequence[Extent]
    handles: Handles
    upload: int

    def __str__(self) -> str:
        return "a product of cuBLAS"

    def at(self, step: int) -> KernelLaunch:
        """The launch in a step.

        Raises:
            NotCapturable: always.
        """
        raise NotCapturable("a loop with products of cuBLAS")

    def ready(self, count: int, upload: Upload, stream: int) -> tuple[Start, Sequence[Extent]]:
        """The function that starts a step, and its arguments; `count` products are counted."""
        args = self.args
        if self.upload >= 0:
            args = from_tables(args, self.upload, upload)
        self.handles.products += count
        return self.function, (self.handles.of(stream), *args)


Item = KernelItem | ProductItem
