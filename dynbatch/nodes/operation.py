"""`Operation`: what a type of node computes, as its author writes it.

A type declares five things: what backward needs (`retains`), the shape rule (`shape_rule`, or
`infer_shape` where it is no line), what must be equal for two nodes to share a kernel (`static`),
and the batched `forward_batch` and `backward_batch`, which see the packed rows of all sentences in
the batch. Batching itself is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dynbatch.attributes import attributes_of
from dynbatch.backend import Array
from dynbatch.kernels.attention.steps import StepScores
from dynbatch.kernels.runtime.tasks import Written
from dynbatch.nodes.batch import Batch, ScanCache
from dynbatch.nodes.flops import NO_FLOPS, BatchSizes, Flops
from dynbatch.nodes.node import Node
from dynbatch.nodes.recorded import Recorded
from dynbatch.nodes.signature import key_of, without_reach
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged

INDEX_BYTES = 8
"""Bytes of one entry of an index table on the host."""

# Multiply-adds of a product that take about as long as a function of one element.
ELEMENT = 32


@dataclass(frozen=True, slots=True)
class Retain:
    """The values that backward reads. Values not named here may be freed right after forward.

    Args:
        inputs: True for every input, False for none, or the positions of the inputs needed.
        output: whether the output is needed.
    """

    inputs: bool | tuple[int, ...] = False
    output: bool = False

    def input(self, position: int) -> bool:
        """Whether input `position` is needed."""
        return self.inputs if isinstance(self.inputs, bool) else position in self.inputs


class Operation(Recorded):
    """Base of node types. A subclass overrides the hooks below; each has a default.

    Args:
        inputs:     nodes this one reads; all of one graph.
        graph:      the owner, for nodes without inputs.
        attributes: stored under their names; those listed in `static` are part of the signature.

    Attributes of a type:
        static:    attributes that must be equal (parameters: identical) for two nodes to batch.
        retains:   what `backward_batch` reads besides the output's gradient.
        shape_rule: the shapes of inputs, parameters and value as a line, such as
            "x (…, I), weight (O, I), [bias (O,)] -> (…, O)", from which `infer_shape`, `any_rank`
            and `keeps_rows` follow: see `nodes.shape_rule`.
        shape_fix: the fix of its errors, or one for each size or value, "" for all others; it may
            have expressions of `self` and of the shapes in braces.
        any_shape: True if `forward_batch` works on flat elements, so that nodes of any width batch.
        any_length: True if nodes batch whose widths are lengths, as those of `q @ k.T` are. Such
            values are flat where the widths differ: see `Ragged`.
        any_rank:  True if inputs may have more than two dimensions, and `infer_shape` takes their
                   shapes. Rows are then those of all dimensions but the last.
        rowwise:   True if the operation on a matrix is the operation on each of its rows, so that a
                   cell may run it once for all tokens instead of once a step.
        keeps_rows: True if a value has the rows and dimensions of its inputs, which have one shape,
                   and a width that follows from theirs and from `static`. Then shape and signature
                   are those of an earlier node of the graph. A subclass with rules of its own
                   inherits False.
        variadic:  True if nodes of any number of inputs batch; all inputs arrive as one `Ragged`.
        differentiable: False if no gradient flows through it.
        inplace_forward:  True if y may be written over any one input of as many elements.
        inplace_backward: True if the last of the wanted dxs may be written over dy.
        passes:    positions of inputs whose gradient is dy as it is. They may share its memory.
        adds_gradient: True if on a GPU backward can add to the gradient of its one input, where
            `batch.adds` is set. What is said here of forward, or of backward, a user's type
            does not inherit if it has a `forward_batch`, or `backward_batch`, of its own.
        recomputes: True if backward can make again what forward left: see `recompute_choices`.
        writes_tasks: True if kernels only write down what is to be done: it is done beside what
            others have written down.
        is_one_kernel: True if forward only calls one kernel, which reads parameters and packed
            arrays. Its call may be written down, and done again. A type with a `forward_batch` of
            its own inherits False.
        fuses_backward: True if `forward_backward` makes value and gradients in one pass.
        is_alias:  True if the value is its input's, and lies where that lies unless it is kept.
        moves_all: True if every element of every input is moved exactly once, so that its gradient
            is written rather than added to; for `Structural` types.
        only_moves: True if values are copied, taken apart or joined, and nothing is computed.
        exact:     True if values stay float32 in a graph of precision "bfloat16": losses, sums.
        multiplies_values: True if its matrix products are of two values, whose factors
            `Graph(matmul=...)` leaves in float32.
        given_attributes: attributes that follow from one array of the sentence, and from nothing
            else of it; see `given`. The number of rows then follows from that array's shape and the
            inputs' sizes.
        accumulates: positions of inputs whose gradients backward adds to where `batch.accumulate`
            is set; see `finish`.
        cache_type: of `Batch.cache`, what is kept from step to step of a scan.
        draws:     True if values are random, drawn with the number in the node's `stream`.
        names_kernels: True if on a GPU all that it does is to launch kernels, by `batch.launch`.
            They wait in the queue with those of the other nodes, for one copy of all tables. By
            default only dynbatch's own types do so. Another type may compute with `batch.xp`, at
            once; everything before it is therefore started first.

    Attributes that follow from the type:
        is_built_in:   whether it is one of dynbatch's own.
        reads_ports:   whether it reads further outputs of nodes: `reads` is overridden.
        takes_lengths: whether nodes batch where widths that are lengths differ, or are 0.
        saves:         whether forward leaves arrays beside the output.
        checks_given:  whether an array must suit the sentence's sizes: see `check_given`.
        splits:        whether a part of a batch is a batch: not if `sources` is overridden.
    """

    __slots__ = ()

    retains: ClassVar[Retain] = Retain()
    rowwise: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    inplace_forward: ClassVar[bool] = False
    inplace_backward: ClassVar[bool] = False
    passes: ClassVar[tuple[int, ...]] = ()
    adds_gradient: ClassVar[bool] = False
    recomputes: ClassVar[bool] = False
    writes_tasks: ClassVar[bool] = False
    is_one_kernel: ClassVar[bool] = False
    fuses_backward: ClassVar[bool] = False
    is_alias: ClassVar[bool] = False
    moves_all: ClassVar[bool] = False
    only_moves: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    multiplies_values: ClassVar[bool] = False
    cache_type: ClassVar[type[ScanCache]] = ScanCache
    accumulates: ClassVar[tuple[int, ...]] = ()
    given_attributes: ClassVar[tuple[str, ...]] = ()
    draws: ClassVar[bool] = False

    names_kernels: ClassVar[bool]
    is_built_in: ClassVar[bool]
    reads_ports: ClassVar[bool]
    saves: ClassVar[bool]
    checks_given: ClassVar[bool]
    splits: ClassVar[bool]

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        cls.is_built_in = cls.__module__.startswith("dynbatch.")
        if "names_kernels" not in cls.__dict__:
            cls.names_kernels = cls.is_built_in
        for way in ("forward", "backward"):
            if isinstance(cls.__dict__.get(way), classmethod):  # the hooks' names in older types
                setattr(cls, f"{way}_batch", cls.__dict__[way])
                delattr(cls, way)
            # What the kernels of a base bear, a forward or backward of its own may not.
            has_own = f"{way}_batch" in cls.__dict__
            if has_own and f"inplace_{way}" not in cls.__dict__ and not cls.is_built_in:
                setattr(cls, f"inplace_{way}", False)
                if way == "backward":
                    cls.passes, cls.adds_gradient = (), False
            if has_own and "comes_again" not in cls.__dict__:
                cls.comes_again = Operation.comes_again  # type: ignore[method-assign]
        if "forward_batch" in cls.__dict__ and "is_one_kernel" not in cls.__dict__:
            cls.is_one_kernel = False
        cls.reads_ports = cls._overrides("reads")
        cls.saves = cls._overrides("saved")
        cls.checks_given = cls._overrides("check_given")
        cls.splits = not cls._overrides("sources")

    def is_rowwise(self) -> bool:
        """Whether this node works row by row (see `rowwise`)."""
        return self.rowwise

    def follows_sizes(self) -> bool:
        """Whether rows, width and attributes are sums of sizes of the inputs, and of constants.

        A block that was traced at some sizes then knows them for all. Types that cut, as `x[:5]`,
        do not: the block is traced at each new size. Nor are types of users trusted, unless they
        work row by row.
        """
        return self.is_built_in or self.rowwise

    def strided(self) -> tuple[int, ...]:
        """Positions of inputs whose rows, and whose gradient's rows, may be part of wider rows.

        All others are contiguous.
        """
        return ()

    @classmethod
    def comes_again(cls, batch: Batch) -> bool:
        """Whether forward and backward are kernels alone that read packed arrays and parameters.

        Their calls may be written down and made again, while arrays lie where they lie.
        """
        return False

    @classmethod
    def reads_in_backward(cls, batch: Batch) -> Retain:
        """The values that backward of this batch reads: `retains`, or less."""
        return cls.retains

    @classmethod
    def reads_values(cls) -> bool:
        """Whether backward reads an input, the output or a saved array."""
        return bool(cls.retains.inputs) or cls.retains.output or cls.saves

    @classmethod
    def uses_output(cls, batch: Batch) -> bool:
        """Whether backward gains by the output where something else keeps it up to then.

        `batch.output` is None where nothing does. No scan asks: see `retains`.
        """
        return False

    # What it reads ------------------------------------------------------------------------------

    def all_parameters(self) -> tuple[Parameter, ...]:
        read = [x for name in self.static if isinstance(x := getattr(self, name), Parameter)]
        return tuple(read)

    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that receive a gradient from this node: all that are not frozen."""
        return tuple([value for value in self.all_parameters() if not value.frozen])

    def producers(self) -> Sequence[Node]:
        """The nodes that compute the inputs, some perhaps several times."""
        return [x.producer() for x in self.inputs] if self.phase else self.inputs

    def reads(self) -> Sequence[Any]:
        """The values this node reads: its inputs, unless it reads a port of one."""
        return self.inputs

    @classmethod
    def sources(cls, nodes: Sequence[Any]) -> list[list[Any]]:
        """The values that make up each packed input of a batch of these nodes, in order."""
        if cls.variadic:
            flat = [x for node in nodes for x in node.reads()]
            return [flat] if flat else []
        return [[node.inputs[number] for node in nodes] for number in range(len(nodes[0].inputs))]

    def attributes(self) -> dict[str, Any]:
        """The attributes that its type adds to a node."""
        held = attributes_of(self).items()
        return {name: value for name, value in held if name not in Node.__slots__}

    def rebuild(self, *inputs: Node) -> Node:
        """This operation, with equal attributes, on other inputs."""
        return type(self)(*inputs, **self.attributes())

    def given(self, array: Array) -> tuple[Any, ...]:
        """The `given_attributes` for another array than this node's, checked as it was.

        A block asks it of its traced nodes, once for each sentence.
        """
        raise NotImplementedError(f"{type(self).__name__}.given")

    def given_values(self) -> tuple[Any, ...]:
        """The `given_attributes` of this node."""
        return tuple([getattr(self, name) for name in type(self).given_attributes])

    def check_given(self, values: tuple[Any, ...], rows: Sequence[int]) -> None:
        """Raise an error unless `given_attributes` suit a sentence's sizes, as ids of rows do.

        A block asks it for each sentence; `infer_shape` asks `require_given`.

        Args:
            values: of the `given_attributes`.
            rows:   of the value, then of each input.
        """

    def require_given(self, *rows: int) -> None:
        """`check_given` of the node itself, unless its arrays were drawn to trace a block."""
        if not self.graph.draws_arrays:
            self.check_given(self.given_values(), rows)

    def folded(self) -> Operation:
        """A node that replaces this one in a run where nothing else reads its one input.

        Only nodes that were announced to their graph are asked; see `batcher.schedule.folds`.
        """
        raise NotImplementedError(f"{type(self).__name__}.folded")

    # The kernels --------------------------------------------------------------------------------

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> Written | None:
        """Write the outputs of all nodes of the batch into `y`. Inputs must not be modified.

        A type that `writes_tasks` returns them.
        """
        raise NotImplementedError(f"{cls.__name__}.forward_batch")

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> Written | None:
        """Overwrite each wanted `dx` with its gradient. The executor adds; a node never does."""
        raise NotImplementedError(f"{cls.__name__}.backward_batch")

    @classmethod
    def forward_backward(
        cls, batch: Batch, y: Ragged, xs: Sequence[Ragged], dy: Ragged, dxs: Sequence[Ragged | None]
    ) -> None:
        """Forward and backward in one pass; for types that `fuses_backward`."""
        raise NotImplementedError(f"{cls.__name__}.forward_backward")

    @classmethod
    def moves_all_of(cls, batch: Batch) -> bool:
        """Whether a batch moves every element that it reads exactly once; see `moves_all`."""
        return cls.moves_all

    def port_widths(self) -> tuple[int, ...]:
        """Widths of further outputs, one vector for each node, which `Port` nodes read."""
        return ()

    # What the kernels need ----------------------------------------------------------------------

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """Elements of scratch that forward needs while it runs, as `batch.scratch`."""
        return 0

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        """Elements of scratch that backward needs while it runs, as `batch.scratch`."""
        return 0

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        """Arrays (rows, width) that forward leaves for backward beyond inputs and output."""
        return {}

    @classmethod
    def narrow_saved(cls, batch: Batch) -> Collection[str]:
        """The names of `saved` that precision "bfloat16" rounds: values, no sums or positions."""
        return ()

    @classmethod
    def read_narrow(cls, batch: Batch) -> Collection[str]:
        """Names of `narrow_saved` that backward can read as uint16, the upper halves of numbers."""
        return ()

    @classmethod
    def reads_narrow_input(cls, batch: Batch, backward: bool) -> bool:
        """Whether a pass can read its one input as uint16, the upper halves of numbers."""
        return False

    @classmethod
    def recompute_of(cls, nodes: Sequence[Any]) -> int:
        """`Batch.recompute` of these nodes, unless a plan sets it."""
        return 0

    @classmethod
    def recompute_choices(cls, batch: Batch) -> list[int]:
        """Values of `batch.recompute` besides 0 that are worth trying, the fastest first.

        Each leaves less for backward, or makes it smaller; `saved`, `workspace` and
        `workspace_backward` say how much.
        """
        return []

    @classmethod
    def operations(cls, batch: Batch) -> int:
        """Roughly what forward costs: `memory_limit` chooses by it what to recompute.

        Multiply-adds of its products, and `ELEMENT` for each element that it writes.
        """
        parameters = () if cls.only_moves else batch.first.all_parameters()
        factors: int = sum([p.size for p in parameters if p.value.ndim > 1])
        return factors * batch.rows + ELEMENT * batch.elements

    @classmethod
    def flops(cls, sizes: BatchSizes) -> Flops:
        """Floating-point operations of forward, as `graph.flops()` counts them.

        By default those of a product of each row with every parameter that is a matrix, and 1 for
        each element of the output, or of the largest input if that is larger.
        """
        if cls.only_moves:
            return NO_FLOPS
        parameters = sizes.batch.first.all_parameters() if cls.static else ()
        products = sizes.row_products(parameters) if parameters else 0
        return Flops(products, max([sizes.elements, *sizes.inputs]))

    @classmethod
    def flops_backward(cls, sizes: BatchSizes, wanted: Sequence[bool]) -> Flops:
        """Operations of backward; by default as many for each wanted gradient that is not dy.

        Args:
            wanted: of each input, whether it gets a gradient.
        """
        if cls.only_moves:
            return NO_FLOPS
        products = 0
        if cls.static and (parameters := sizes.batch.first.all_parameters()):
            products = sizes.row_products([p for p in parameters if not p.frozen])
            products += sizes.row_products(parameters) if any(wanted) else 0
        made = [k for k, is_wanted in enumerate(wanted) if is_wanted and k not in cls.passes]
        return Flops(products, sum([max(sizes.elements, sizes.inputs[k]) for k in made]))

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        """Bytes of the batch's index tables while it runs: offsets, and what a type adds."""
        return INDEX_BYTES * (len(batch.nodes) + 1)

    @classmethod
    def gradient_rows(cls, batch: Batch) -> Array | None:
        """The rows of its one parameter, a table, that backward leaves a gradient of; None for all.

        They are what `Gradients.rows` is given, some perhaps several times.
        """
        return None

    @classmethod
    def outer_weight(cls, batch: Batch) -> Parameter | None:
        """The parameter that backward passes to `Gradients.outer` once, with a row for each of y.

        Where several steps use it, what `outer` is given stays in memory until few rows of some
        steps are one product. None makes each product at once.
        """
        return None

    # Steps of a scan that share one memory ------------------------------------------------------

    def step_scores(self, memories: Sequence[int | None]) -> StepScores | None:
        """The scores of attention whose steps are run together; None if its kernels run each.

        Args:
            memories: for each input, the number of the memory that it is, or None.
        """
        return None

    @classmethod
    def finish(cls, batch: Batch, *dxs: Ragged | None) -> None:
        """Add what the steps of a scan left in `batch.cache` to the gradients of the memory."""


Node.base_of_types = Operation


class Elementwise(Operation):
    """Base of functions of single elements, those at one place in all inputs."""

    __slots__ = ()

    any_shape = True
    rowwise = True
    inplace_forward = True
    inplace_backward = True


def signature_type(signature: int) -> type[Operation]:
    """The node type behind an interned signature."""
    node_type: type[Operation] = key_of(signature)[0]
    return node_type


def signature_parts(signature: int) -> list[tuple[str, Any]]:
    """The entries of a signature besides the type, by name: see `Operation.signature_names`."""
    node_type, *values = key_of(without_reach(signature))
    return list(zip(node_type.signature_names(values), values, strict=True))
