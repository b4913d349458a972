"""`Node`: the value of one operation of one sentence, as users hold it.

Its type says what it computes and how it batches: see `nodes.operation`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, Self

from dynbatch import backend
from dynbatch.backend import Array, DType
from dynbatch.errors import DynbatchError, MissingAttributeError, ShapeError
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.syntax.operators import OperatorMethods
from dynbatch.nodes.syntax.registry import not_an_argument
from dynbatch.parameter import Parameter

Shape = tuple[int, ...]

ROWS, WIDTH = 1, 2
"""Dimensions of a value in `Node.ragged`: its rows are tokens, its width is a number of tokens."""


class Owner(Protocol):
    """The part of a graph that its nodes call."""

    dtype: DType
    uid: int
    programs: dict[Any, Any]  # of scans and blocks, looked up for this graph
    signatures: dict[Any, int]  # of its nodes, by what they follow from
    widths: dict[Any, tuple[int, int]]  # with the signature, of nodes that keep rows

    is_trace: bool
    converted_bytes: int  # of inputs that were given in another dtype
    reads_short: bool  # whether parameters in 16 bits may be read in it
    draws_arrays: bool  # in place of a sentence's: what they hold need not suit its sizes

    @property
    def names(self) -> Mapping[int, str]: ...  # of nodes that have one, by their index

    @property
    def device(self) -> backend.Device | None: ...  # None for a trace of a cell, which runs nowhere

    @property
    def form_ids(self) -> Any: ...

    def add(self, node: Node) -> int: ...

    def add_light(self, node: Node) -> int: ...

    def absorb(self, node: Node, reader: Node) -> None: ...

    def value(self, node: Node) -> Array: ...

    def gradient(self, node: Node) -> Array: ...

    def device_value(self, node: Node) -> Array: ...

    def device_gradient(self, node: Node) -> Array: ...

    def keep(self, node: Node) -> None: ...

    def name(self, node: Node, name: str) -> None: ...

    def backward(
        self, loss: Node, memory_limit: int | str | None = None, gradient: object = None
    ) -> None: ...

    def stream(self, node: Node) -> int: ...

    def note_block(self, block: str, what: str) -> None: ...

    def sentence(self, node: Node) -> int | None: ...


class Node(OperatorMethods["Node"]):
    """A value: a matrix (T, D), a vector (D,) or a scalar (). A node never changes.

    It may have more dimensions, (T, A, D) or (H, W, C) say: then its rows are those of all
    dimensions but the last, T·A or H·W of them, one after the other as in a C-contiguous array.

    It has operators, `x[...]`, `len(x)` and the names of tensors' methods that
    `nodes.syntax.methods` has. `x == y` is identity, so that `in`, sets and dicts find nodes;
    beside a number or an array it is an error.

    Attributes:
        graph:    the owner.
        index:    the node's number in its graph.
        inputs:   the nodes that it reads.
        shape, ndim, rows, width: of the value; a vector is one row, a scalar has width 1.
        ragged:   which dimensions are lengths, ROWS | WIDTH: see `Operation.infer_ragged`.
        sig:      the signature: nodes of equal ones may share a kernel.
        phase:    how many successive runs of calls the value waits for; see
            `cells.calls.call`.

    `stream_name` is what random streams know the type by: it stays when a class is renamed, and the
    masks of dropout with it. `joins_sentences` is True for what is of no sentence by what it is,
    `is_shared` for what sentences share without being one: a parameter; `is_sentence` for what is
    of a sentence even as a number that reads no node: a block's call, which reads arrays.
    """

    __slots__ = (
        "__weakref__", "_block", "_leading", "_position", "_start",
        "graph", "index", "inputs", "ndim", "phase", "ragged", "rows", "sig", "width",
    )  # fmt: skip

    stream_name: ClassVar[str]
    joins_sentences: ClassVar[bool] = False
    is_shared: ClassVar[bool] = False
    is_sentence: ClassVar[bool] = False
    base_of_types: ClassVar[type[Node]]  # `Operation`

    graph: Owner
    index: int
    inputs: tuple[Node, ...]
    ndim: int
    rows: int
    width: int
    ragged: int
    sig: int
    phase: int
    _block: Any
    _leading: Shape  # all sizes but the last, of a value of more than two dimensions
    _position: int
    _start: int

    def __init_subclass__(cls, **named: object) -> None:
        if Node in cls.__bases__ and not cls.__module__.startswith("dynbatch."):
            # Types of users' own were written on Node before there was Operation: they are of it.
            operation = cls.base_of_types
            cls.__bases__ = tuple([operation if base is Node else base for base in cls.__bases__])
            return super(cls, cls).__init_subclass__(**named)
        super().__init_subclass__(**named)
        cls.stream_name = vars(cls).get("stream_name", cls.__name__)

    @property
    def shape(self) -> Shape:
        if self.ndim == 2:
            return (self.rows, self.width)
        if self.ndim > 2:
            return (*self._leading, self.width)
        return (self.width,) if self.ndim else ()

    @shape.setter
    def shape(self, shape: object) -> None:
        raise self._fixed("shape", "F.reshape(x, shape) is a node of that shape")

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all values of the node: one, unless a call returned a tuple."""
        return (self.shape,)

    @property
    def dtype(self) -> DType:
        """The dtype of the graph."""
        return self.graph.dtype

    @property
    def value(self) -> Array:
        """A copy of the value as a NumPy array; runs what is needed, batched.

        Raises:
            FreedError: memory was given to others: after a backward, or where `grad=False` and no
                variable held the node when its last reader ran. `keep()` before that keeps it.
        """
        return self.graph.value(self)

    @value.setter
    def value(self, value: object) -> None:
        raise self._fixed("value", "F.input(graph, array) is a node of another value")

    @property
    def gradient(self) -> Array:
        """d loss / d value, after `graph.backward` with this node kept (`keep()`)."""
        return self.graph.gradient(self)

    @gradient.setter
    def gradient(self, gradient: object) -> None:
        raise self._fixed("gradient", "parameters have a grad that can be changed")

    @property
    def device_value(self) -> Array:
        """A copy of the value on the graph's device; on a GPU a CuPy array, without waiting.

        Like `value` it runs what is needed. It is the caller's own: made in one launch on CuPy's
        current stream, not part of the arena, and valid as long as it is held, whatever becomes of
        the graph. `torch.from_dlpack(node)` and every other reader of DLPack get it so.
        """
        return self.graph.device_value(self)

    @property
    def device_gradient(self) -> Array:
        """A copy of `gradient` on the graph's device; see `device_value`."""
        return self.graph.device_gradient(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.dlpack_device(self.graph.device or backend.CPU)

    def __dlpack__(self, *, dl_device: Any = None, copy: Any = None, **options: Any) -> Any:
        """Hand out `device_value`, or `value` where the reader asks for memory of the host."""
        if copy is False:
            raise BufferError(
                f"{self.label()}: a value is handed out as a copy, since the graph gives its "
                "memory to others.\n  fix:  from_dlpack(node) without copy=False"
            )
        wants_host = dl_device is not None and dl_device[0] == exchange.HOST
        array = self.value if wants_host else self.device_value
        return exchange.capsule(array, dl_device=dl_device, **options)

    def keep(self) -> Node:
        """Keep value and gradient readable after backward, and after the `with` block.

        Returns the node.
        """
        self.graph.keep(self)
        return self

    def named(self, name: str) -> Self:
        """Give the node a name, under which `graph[name]` finds it. Returns the node.

        Errors, reports and drawings say the name beside type and index. A node without a name costs
        nothing more for it; a node with one is computed and batched as without it, and freed by
        backward too. Where `grad=False`, a name holds the node as a variable does.

        Raises:
            ArgumentError: the name is not a text, or empty; another node of the graph has it; or
                this node has another one.
            GraphError:    the node lies inside a cell, or the graph is closed.

        Example:
            >>> import dynbatch as db
            >>> from dynbatch import nodes as F
            >>> with db.Graph() as graph:
            ...     loss = F.sum(F.tanh(F.input(graph, [0.0, 2.0])).named("hidden"))
            ...     print(graph["hidden"], graph["hidden"].value[0])
            Tanh #1 "hidden" (2,) 0.0
        """
        self.graph.name(self, name)
        return self

    def backward(
        self, gradient: object = None, memory_limit: int | str | None = None, **habits: Any
    ) -> None:
        """`graph.backward(x, ...)`: see there.

        Raises:
            DtypeError: an argument that only PyTorch has (`retain_graph`, `create_graph`).
        """
        if habits:
            raise not_an_argument("backward", habits)
        self.graph.backward(self, memory_limit=memory_limit, gradient=gradient)

    # Errors -------------------------------------------------------------------------------------

    def require(
        self,
        condition: bool,
        problem: str,
        rule: str,
        fix: str,
        error: type[DynbatchError] = ShapeError,
    ) -> None:
        """Raise `error` with node, sentence, inputs, rule and fix unless `condition`."""
        if not condition:
            self.refuse(problem, rule, fix, error)

    def refuse(
        self,
        problem: str,
        rule: str,
        fix: str,
        error: type[DynbatchError] = ShapeError,
        line: str | None = None,
    ) -> NoReturn:
        """Raise the error of `require`; where nodes are many, its texts are made only here."""
        raise error.at_caller(f"{heading(self, problem)}\n  rule: {rule}\n  fix:  {fix}", line)

    def _fixed(self, name: str, fix: str) -> MissingAttributeError:
        return MissingAttributeError.at_caller(
            f"{self!r}: its {name} cannot be set.\n"
            "  rule: a node is what its operation gives, and never changes\n"
            f"  fix:  {fix}"
        )

    def label(self) -> str:
        """Type, index and name, as errors and reports call the node."""
        index = getattr(self, "index", None)
        if index is None:
            return f"{type(self).__name__} #new"
        return f"{type(self).__name__} #{index}{self.name_shown()}"

    def name_shown(self) -> str:
        """The node's name as labels end with it, `' "h"'`; "" where it has none."""
        name = self.graph.names.get(self.index)
        return "" if name is None else f" {json.dumps(name, ensure_ascii=False)}"

    def __repr__(self) -> str:
        return f"{self.label()} {self.shape}"

    # What the engine asks of every value --------------------------------------------------------

    def producer(self) -> Node:
        """The node that computes this value: itself, but for calls, which a region runs."""
        return self

    def content(self) -> bytes:
        """Bytes that tell this node from others of its type and inputs; see `nodes.stream`."""
        return b""

    def indices_read(self) -> list[int]:
        """The indices of its inputs, or greater numbers; none becomes a node for that."""
        return [x.index for x in self.inputs]

    def all_parameters(self) -> tuple[Parameter, ...]:
        """The parameters that this node reads."""
        return ()


def heading(node: Node, problem: str) -> str:
    """The head of every message about a node: node, sentence, problem and inputs."""
    sentence = node.graph.sentence(node)
    where = "" if sentence is None else f", sentence {sentence}"
    lines = [f"{node.label()}{where}: {problem}."]
    for name, source in zip("abcdefgh", node.inputs, strict=False):
        shapes = ", ".join(map(str, source.shapes))
        lines.append(f"  {name}  {source.label():<16} {node.graph.dtype} {shapes}")
    if len(node.inputs) > 8:
        lines.append(f"  … {len(node.inputs) - 8} more inputs")
    return "\n".join(lines)


def ancestors(targets: Sequence[Node], start: int = 0) -> dict[int, Node]:
    """The targets and all nodes that they read, by index; of these only those from `start` on."""
    nodes = {node.index: node for node in targets if node.index >= start}
    stack = list(nodes.values())
    while stack:
        for x in stack.pop().inputs:
            if x.index >= start and x.index not in nodes:
                nodes[x.index] = x
                stack.append(x)
    return nodes


def in_order(nodes: Sequence[Node]) -> bool:
    """Whether the values lie one after the other in one block."""
    block, first = nodes[0]._block, nodes[0]._position
    if first is None:  # some columns of a row: see `cells.calls.call`
        return False
    if [x._position for x in nodes] != list(range(first, first + len(nodes))):
        return False
    return [x._block for x in nodes].count(block) == len(nodes)
