"""`Batch`: the nodes of one launch and their packed arrays, as a node type sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dynbatch.backend import CPU, Array, ArrayModule, ArraySpec, Device, DType
from dynbatch.errors import BackendError
from dynbatch.kernels.own_kernel import Arguments, CudaKernel, Dimensions
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged


class Gradients(Protocol):
    """Takes the gradients of parameters from node types; they are summed after the kernels.

    Attributes:
        later: whether a buffer may be filled as late as that.
    """

    later: bool

    def outer(self, parameter: Parameter, x: Array, dy: Array) -> None:
        """Add dyᵀ x to a parameter (O, I), for x (N, I) and dy (N, O), in one product."""

    def add(self, parameter: Parameter, gradient: Array) -> None:
        """Add an array of the parameter's shape."""

    def rows(self, parameter: Parameter, ids: Array, dy: Array) -> None:
        """Add dy (N, D) to rows `ids` (N,) of a table, leaving the other rows untouched."""

    def buffer(self, parameter: Parameter) -> Array:
        """An array of the parameter's shape that the caller must overwrite with its gradient."""


class ScanCache:
    """State that an operation keeps from step to step of a scan; a node type may have its own.

    Attributes:
        sentences: of the first step.
    """

    __slots__ = ("sentences",)

    def __init__(self, sentences: int) -> None:
        self.sentences = sentences


class Batch:
    """Nodes of one signature that run together.

    Attributes:
        nodes:      the nodes, in creation order.
        device:     where they run; `xp` is its array module, NumPy or CuPy.
        inputs:     packed inputs; in backward, None where `retains` does not name them.
        output:     packed output; in backward, None unless retained.
        ports:      packed further outputs, see `Operation.port_widths`; in backward
            `port_gradients`.
        memo:       what forward wants to find again in backward, for instance index tables.
        saved:      arrays that forward left, by the names of `Operation.saved`.
        gradients:  where gradients of parameters go (backward only).
        keeps:      whether a backward may follow, so that `saved` must be filled.
        recompute:  what a node type that `recomputes` leaves for backward to make again: 0 for
            nothing; else one of `Operation.recompute_choices`. May be set before `saved` and the
            workspaces are asked for; see `Operation.recompute_of`.
        launches:   kernels launched; a node type that launches more than one adds to it, unless it
            launches them by `launch`.
        accumulate: backward adds to the dxs that the node type lists in `accumulates`, or leaves
            that to its `finish`; see `nodes.attention.base`. Only a scan sets it, whose
            steps share one memory.
        adds:       backward adds to the gradient of the input, of types with `adds_gradient`.
        cache:      what a scan keeps for this operation from step to step; None outside a scan.
    """

    __slots__ = (
        "_own_launches", "_scratch", "accumulate", "adds", "cache", "device", "dtype", "gradients",
        "inputs", "keeps", "launches", "memo", "nodes", "output", "port_gradients", "ports",
        "recompute", "saved",
    )  # fmt: skip

    def __init__(
        self, nodes: Sequence[Any], dtype: DType, device: Device = CPU, recompute: int = 0
    ) -> None:
        self.nodes = nodes
        self.dtype = dtype
        self.device = device
        self.inputs: tuple[Ragged | None, ...] = ()
        self.output: Ragged | None = None
        self.memo: dict[str, Any] = {}
        self.ports: list[Ragged] = []
        self.port_gradients: list[Ragged] = []
        self.saved: dict[str, Array] = {}
        self.gradients: Gradients | None = None
        self.keeps = True
        self.recompute = recompute
        self._scratch: Array | None = None
        self.launches = self._own_launches = 0
        self.accumulate = self.adds = False
        self.cache: ScanCache | None = None

    @property
    def xp(self) -> ArrayModule:
        """The array module of the device, NumPy or CuPy. A plan does not ask for it."""
        return self.device.xp

    @property
    def spec(self) -> ArraySpec:
        """The device and the dtype of its arrays, from which kernels tell their scratch."""
        return ArraySpec(self.device, self.dtype)

    @property
    def scratch(self) -> Array:
        """Room of as many elements as `Operation.workspace` asked for, during forward."""
        if self._scratch is None:
            self._scratch = self.xp.empty(0, self.dtype)
        return self._scratch

    @scratch.setter
    def scratch(self, array: Array) -> None:
        self._scratch = array

    def like(self, keeps: bool, recompute: int) -> Batch:
        """The batch with these two settings, for node types to read."""
        if self.keeps == keeps and self.recompute == recompute:
            return self
        other = Batch.__new__(Batch)
        for name in Batch.__slots__:
            setattr(other, name, getattr(self, name))
        other.keeps, other.recompute = keeps, recompute
        return other

    @property
    def first(self) -> Any:
        """The first node: its static attributes and widths are those of all."""
        return self.nodes[0]

    def column(self, name: str) -> list[Any]:
        """One attribute of each node."""
        column = getattr(self.nodes, "column", None)
        return [getattr(node, name) for node in self.nodes] if column is None else column(name)

    def array(self, name: str, dtype: Any = None) -> Array:
        """One per-node attribute as an array (K,)."""
        return np.array(self.column(name), dtype)

    def concat(self, name: str) -> Array:
        """Per-node arrays, one after the other."""
        arrays = self.column(name)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def sizes(self, name: str) -> list[int]:
        """The number of elements of each node's attribute `name`, an array."""
        return [array.size for array in self.column(name)]

    @property
    def lengths(self) -> list[int]:
        """The number of rows of each output."""
        lengths: list[int] | None = getattr(self.nodes, "lengths", None)
        return [node.rows for node in self.nodes] if lengths is None else lengths

    @property
    def widths(self) -> list[int]:
        """The width of each output."""
        widths: list[int] | None = getattr(self.nodes, "widths", None)
        return [node.width for node in self.nodes] if widths is None else widths

    def input_nodes(self, position: int) -> Sequence[Any]:
        """The value that each node reads at a position."""
        reads = getattr(self.nodes, "input_nodes", None)
        if reads is None:
            return [node.inputs[position] for node in self.nodes]
        nodes: Sequence[Any] = reads(position)
        return nodes

    def reads(self) -> Sequence[Any]:
        """All that the nodes of a variadic type read."""
        reads = getattr(self.nodes, "reads", None)
        if reads is None:
            return [x for node in self.nodes for x in node.reads()]
        places: Sequence[Any] = reads()
        return places

    def input_rows(self, position: int) -> list[int]:
        """Rows of what each node reads at a position."""
        return sizes_of(self.input_nodes(position))[0]

    def input_widths(self, position: int) -> list[int]:
        """Widths of what each node reads at a position."""
        return sizes_of(self.input_nodes(position))[1]

    def input_shapes(self, position: int) -> list[tuple[int, int]]:
        """Rows and width of what each node reads at a position."""
        return list(zip(self.input_rows(position), self.input_widths(position), strict=True))

    @property
    def has_one_width(self) -> bool:
        """Whether all outputs have the same width."""
        widths = self.widths
        return widths.count(widths[0]) == len(widths)

    @property
    def rows(self) -> int:
        """The number of rows of all outputs."""
        return sum(self.lengths)

    @property
    def elements(self) -> int:
        """The number of elements of all outputs."""
        return sum([n * w for n, w in zip(self.lengths, self.widths, strict=True)])

    def by_operator(self) -> list[Batch]:
        """In a block, the nodes of each operator apart: their rows lie together. Else itself."""
        parts = getattr(self.nodes, "by_operator", None)
        if parts is None:
            return [self]
        return [Batch(nodes, self.dtype, self.device) for nodes in parts()]

    def counts(self) -> list[int]:
        """The number of inputs of each node, for variadic types."""
        counts = getattr(self.nodes, "counts", None)
        return [len(node.inputs) for node in self.nodes] if counts is None else counts()

    def input(self, position: int) -> Ragged:
        """A packed input that `retains` names."""
        x = self.inputs[position]
        assert x is not None, (
            f"{self.first.label()} did not retain input {position}.\n"
            "  fix:  retains = db.Retain(inputs=True) in its class"
        )
        return x

    def result(self) -> Ragged:
        """The packed output, when `retains` names it."""
        assert self.output is not None, (
            f"{self.first.label()} did not retain its output.\n"
            "  fix:  retains = db.Retain(output=True) in its class"
        )
        return self.output

    def begin(self, launches: int) -> None:
        """Have counted so many kernels, with the first of the hook that is called next."""
        self.launches = launches
        self._own_launches = 0

    def launch(
        self,
        kernel: CudaKernel,
        grid: int | Dimensions,
        block: int | Dimensions,
        args: Arguments,
        shared: int = 0,
    ) -> None:
        """Launch a kernel of the user's own on the GPU, in its turn among those of other nodes.

        Args:
            kernel: compiled for the batch's dtype, which is `REAL` in its text.
            grid:   the number of blocks, in up to three dimensions. Where one is 0, as where there
                are no rows, nothing is launched.
            block:  the threads of a block, in up to three dimensions.
            args:   one for each parameter. For a pointer: an array of the GPU that is C-contiguous
                and of the dtype that is pointed to, such as `x.values`, `batch.scratch` and a
                parameter's value; or None for NULL. An array of NumPy, such as `x.offsets` and
                `batch.array("scale")`, becomes a table of a `const` pointer: it is copied now, in
                the dtype that is pointed to, and one copy brings all tables of a run to the GPU. An
                array that is given to several launches of a run is copied once: write no other
                numbers into it. For a number: one of Python or NumPy, cast to the parameter's type.
            shared: bytes of dynamic shared memory of each block.

        Raises:
            BackendError: the batch runs on the CPU; or the text does not compile, with the lines of
                the user's file: here, or with `names_kernels` when the run is started.
            ShapeError:   the number of arguments is wrong, an array is not C-contiguous, or a block
                or grid is larger than a GPU takes.
            DtypeError:   an argument is not what its parameter takes.
            OverflowError: an integer does not fit its parameter.
        """
        if not self.device.is_cuda:
            raise BackendError(
                f"{self.first.label()}: kernel {kernel.name} is launched, and the graph is on the "
                "CPU.\n  rule: a kernel runs on a GPU; on the CPU a type computes with NumPy\n"
                "  fix:  `if batch.device.is_cuda:` tells them apart"
            )
        self._own_launches += 1
        self.launches += self._own_launches > 1  # the first one is counted already
        kernel.launch(self.dtype, grid, block, args, shared)

    def parameter_gradients(self) -> Gradients:
        """The place for gradients of parameters; only in backward."""
        assert self.gradients is not None
        return self.gradients


def sizes_of(nodes: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Rows and widths of nodes."""
    lengths = getattr(nodes, "lengths", None)
    if lengths is None:
        return [x.rows for x in nodes], [x.width for x in nodes]
    return lengths, nodes.widths  # type: ignore[attr-defined]
