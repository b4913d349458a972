"""`Node`: one operation of one sentence. It says what is computed; batching is decided elsewhere.

A node type declares five things, in this order: what backward needs (`retains`), the shape rule
(`infer_shape`), what must be equal for two nodes to share a kernel (`static`), and the batched
`forward_batch` and `backward_batch`, which see the packed rows of all sentences in the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dynbatch import backend
from dynbatch.errors import (
    DtypeError,
    DynbatchError,
    EmptyBatchError,
    GraphError,
    MissingAttributeError,
    ShapeError,
)
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.nodes.syntax.methods import Methods
from dynbatch.parameter import Array, Parameter
from dynbatch.recent import free_at_fork

if TYPE_CHECKING:
    from dynbatch.nodes.batch import Batch
    from dynbatch.ragged import Ragged

Shape = tuple[int, ...]

OPERATIONS: dict[str, Callable[..., Node]] = {}

INDEX_BYTES = 8
"""Of one entry of an index table of the host."""

ROWS, WIDTH = 1, 2
"""Dimensions of a value in `Node.ragged`: its rows are tokens, its width is a number of tokens."""

LENGTH = "length"
"""What stands in a signature for a width that is a length."""

# Multiply-adds of a product that take about as long as a function of one element.
ELEMENT = 32

_signatures: dict[tuple[Any, ...], int] = {}
_signature_types: list[type[Node]] = []
_signature_keys: list[tuple[Any, ...]] = []
_interning = free_at_fork(threading.Lock())


class Owner(Protocol):
    """What a node asks of the graph that owns it."""

    dtype: np.dtype[Any]
    uid: int
    programs: dict[Any, Any]  # what cells were compiled to, looked up for this graph

    is_trace: bool

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

    def backward(
        self, loss: Node, memory_limit: int | str | None = None, gradient: Any = None
    ) -> None: ...

    def stream(self, node: Node) -> int: ...

    def sentence(self, node: Node) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Retain:
    """Which values backward reads. What is not named here may be freed right after forward.

    Args:
        inputs: True for every input, False for none, or the positions of the inputs needed.
        output: whether the output is needed.
    """

    inputs: bool | tuple[int, ...] = False
    output: bool = False

    def input(self, position: int) -> bool:
        """Whether input `position` is needed."""
        return self.inputs if isinstance(self.inputs, bool) else position in self.inputs


class Node(Methods):
    """Base of every operation. A value is a matrix (T, D), a vector (D,) or a scalar ().

    For users:   `shape`, `ndim`, `len(x)`, `value`, `gradient`, `device_value`, `device_gradient`,
        `keep()`, `backward()`, operators, `x[...]`, and the names of tensors' methods that
        `nodes.syntax.methods` has. `x == y` is identity, so that `in`, sets and dicts find nodes;
        beside a number or an array it is an error. What a value is never changes.
    For authors of node types, and for the engine: all else. It says how a node batches and what
        memory it takes: `parameters()` are those that one node reads (`model.parameters()` has a
        model's), `saved`, `workspace`, `sources`, `reads`, `rebuild`, `producers`, `operations` and
        `index_bytes` are asked by what runs it, `rows` and `width` hold its shape.

    Args:
        inputs:     nodes this one reads; all of one graph.
        graph:      the owner, for nodes without inputs.
        attributes: stored under their names; those listed in `static` are part of the signature.

    Subclasses set:
        static:    attributes that must be equal (parameters: identical) for two nodes to batch.
        retains:   what `backward_batch` reads besides the output's gradient.
        any_shape: True if `forward_batch` works on flat elements, so that nodes of any width batch.
        any_length: True if nodes batch whose widths are lengths, as those of `q @ k.T` are. Such
            values are flat where the widths differ: see `Ragged`.
        rowwise:   True if the operation on a matrix is the operation on each of its rows, so that a
                   cell may run it once for all tokens instead of once a step.
        variadic:  True if nodes of any number of inputs batch; all inputs arrive as one `Ragged`.
        recomputes: True if backward can make again what forward left: see `recompute_choices`.
        inplace_forward:  True if y may be written over any one input of as many elements.
        inplace_backward: True if the last of the wanted dxs may be written over dy. Neither is
            inherited by a user's type that has a `forward_batch`, or `backward_batch`, of its own.
        strided:   positions of inputs whose rows, and whose gradient's rows, may be part of wider
                   rows on a GPU. All others are contiguous.

    `is_light` is True for what calls of cells return: see `cells.calls.call`.

    `stream_name` is what random streams know the type by: it stays when a class is renamed, and the
    masks of dropout with it.
    `names_kernels` is True for dynbatch's own types, which call kernels only. Another type may
    compute with `batch.xp`; on a GPU everything before it is therefore started first.
    """

    __slots__ = (
        "__weakref__", "_block", "_position", "_start",
        "graph", "index", "inputs", "ndim", "phase", "ragged", "row_form", "rows", "sig", "width",
    )  # fmt: skip

    static: ClassVar[tuple[str, ...]] = ()
    retains: ClassVar[Retain] = Retain()
    any_shape: ClassVar[bool] = False
    any_length: ClassVar[bool] = False
    variadic: ClassVar[bool] = False
    inplace_forward: ClassVar[bool] = False
    inplace_backward: ClassVar[bool] = False
    strided: ClassVar[tuple[int, ...]] = ()
    rowwise: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    fuses_backward: ClassVar[bool] = False
    names_kernels: ClassVar[bool] = True
    stream_name: ClassVar[str]
    recomputes: ClassVar[bool] = False
    is_light: ClassVar[bool] = False
    is_alias: ClassVar[bool] = False  # its value is its input's, where that lies, unless kept
    joins_sentences: ClassVar[bool] = False  # True for what is of no sentence by what it is

    graph: Owner
    inputs: tuple[Node, ...]
    ragged: int  # which dimensions are lengths, ROWS | WIDTH: see `infer_ragged`
    phase: (
        int  # how many runs of calls a value waits for, one after the other; see `cells.calls.call`
    )
    row_form: int  # what a call needs to know of a row of this matrix; set when one is taken
    _block: Any
    _position: int
    _start: int

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.names_kernels = cls.__module__.startswith("dynbatch.")
        cls.stream_name = vars(cls).get("stream_name", cls.__name__)
        for way in ("forward", "backward"):  # the names of these hooks in older node types
            if isinstance(cls.__dict__.get(way), classmethod):
                setattr(cls, f"{way}_batch", cls.__dict__[way])
                delattr(cls, way)
        if not cls.names_kernels:
            # What the kernels of a base bear, a forward or backward of its own may not.
            for way in ("forward", "backward"):
                if f"{way}_batch" in cls.__dict__ and f"inplace_{way}" not in cls.__dict__:
                    setattr(cls, f"inplace_{way}", False)

    def __init__(self, *inputs: Node, graph: Owner | None = None, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)
        self.inputs = inputs
        self.graph = self._owner(graph)
        shape = self.infer_shape(*[node.shape for node in inputs])
        ndim = self.ndim = len(shape)
        self.width = shape[-1] if ndim else 1
        self.rows = shape[0] if ndim == 2 else 1
        self.ragged = self.infer_ragged()
        if not self.width and not (self.ragged & WIDTH and takes_lengths(type(self))):
            self._refuse_no_features(f"the value would have shape {shape}")
        self.sig = self.signature()
        self.phase = max([node.phase for node in inputs]) if inputs else 0
        self._block: Any = None
        self.index = self.graph.add(self)

    def _refuse_no_features(self, problem: str) -> None:
        self.require(
            False,
            problem,
            "every row has at least one feature; only tokens may be none",
            "an empty sentence of D features is np.zeros((0, D))",
        )

    def _owner(self, graph: Owner | None) -> Owner:
        if graph is None:
            if not self.inputs:
                raise EmptyBatchError(f"{type(self).__name__}: no inputs, and no graph was given.")
            graph = getattr(self.inputs[0], "graph", None)
        for node in self.inputs:
            if graph is None or getattr(node, "graph", None) is not graph:
                if not isinstance(node, Node):
                    raise not_a_node(type(self).__name__, node)
                raise GraphError.at_caller(
                    f"{type(self).__name__}: inputs belong to different graphs ({node!r}).\n"
                    "  rule: every node of an expression has one owner\n"
                    "  fix:  build the sentence in one `with db.Graph()` block; give a cell what\n"
                    "        it reads of the sentence as `memory` or as a part of its state"
                )
        assert graph is not None
        return graph

    # The rule -----------------------------------------------------------------------------------

    def infer_shape(self, *shapes: Shape) -> Shape:
        """The output's shape from the inputs' shapes; checks them with `require`."""
        raise NotImplementedError(f"{type(self).__name__}.infer_shape")

    def infer_ragged(self) -> int:
        """Which of the value's dimensions are numbers of tokens, which differ between sentences.

        Rows are, unless said otherwise. A width is where it comes from a transpose, or where what
        works on any shape, or any length, reads such a width.
        """
        if not self.inputs or not takes_lengths(type(self)):
            return ROWS
        found = 0
        for x in self.inputs:
            found |= x.ragged
        return found

    def signature_widths(self) -> list[int | str]:
        """The widths of output and inputs that must agree; `LENGTH` for those that need not."""
        nodes = (self, *self.inputs)
        if type(self).any_length:
            return [LENGTH if node.ragged & WIDTH else node.width for node in nodes]
        widths: list[int | str] = [node.width for node in nodes]
        if 0 in widths:
            self._refuse_no_features("it reads a value without features")
        return widths

    def signature(self) -> int:
        """An interned integer; equal ones may share a kernel. Derived, so that it cannot be wrong.

        It holds the type, the `static` attributes (parameters by identity) and, unless
        `any_shape`, the widths of inputs and output. Never lengths, never the batch.
        """
        kind = type(self)
        key: list[Any] = [kind]
        for name in kind.static:
            value = getattr(self, name)
            key.append(("parameter", value.uid) if isinstance(value, Parameter) else value)
        widths = [] if kind.any_shape else self.signature_widths()
        key += widths[:1]
        if not kind.variadic:
            key += (len(self.inputs), *widths[1:])
        return intern_signature(kind, tuple(key))

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        """The names of what `signature` holds behind the type, for `explain()`.

        Those of `static` attributes, "width", "inputs" (their number) and "input width". A type
        with a `signature` of its own overrides this too.
        """
        if cls.signature is not Node.signature:
            return ["part of the signature"] * len(values)
        names = list(cls.static)
        if not cls.any_shape:
            names.append("width")
        if not cls.variadic:
            names.append("inputs")
        return names + ["input width"] * (len(values) - len(names))

    def is_rowwise(self) -> bool:
        """Whether this node works row by row (see `rowwise`)."""
        return self.rowwise

    def rebuild(self, *inputs: Node) -> Node:
        """The same operation with the same attributes on other inputs."""
        names = [n for kind in type(self).__mro__ for n in kind.__dict__.get("__slots__", ())]
        own = {n: getattr(self, n) for n in names if n not in Node.__slots__}
        return type(self)(*inputs, **own)

    def folded(self) -> Node:
        """A node that stands for this one in a run where nobody else wants its one input.

        Only nodes that their graph was told of are asked; see `batcher.schedule.folds`.
        """
        raise NotImplementedError(f"{type(self).__name__}.folded")

    def all_parameters(self) -> tuple[Parameter, ...]:
        """Parameters that this node reads."""
        values = [getattr(self, name) for name in self.static]
        return tuple([value for value in values if isinstance(value, Parameter)])

    def parameters(self) -> tuple[Parameter, ...]:
        """Those of them that receive a gradient from this node."""
        return tuple([value for value in self.all_parameters() if not value.frozen])

    def port_widths(self) -> tuple[int, ...]:
        """Widths of further outputs, one vector a node each, which `Port` nodes read."""
        return ()

    def producer(self) -> Node:
        """The node that computes this value: itself, but for calls, which a region runs."""
        return self

    def producers(self) -> Sequence[Node]:
        """The nodes that compute the inputs, some perhaps several times."""
        return [x.producer() for x in self.inputs] if self.phase else self.inputs

    def reads(self) -> Sequence[Any]:
        """The places this node reads: its inputs, unless it reads a port of one."""
        return self.inputs

    @classmethod
    def sources(cls, nodes: Sequence[Node]) -> list[list[Any]]:
        """The places that each packed input of a batch of these nodes is made of, in order."""
        if cls.variadic:
            flat = [x for node in nodes for x in node.reads()]
            return [flat] if flat else []
        return [[node.inputs[place] for node in nodes] for place in range(len(nodes[0].inputs))]

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        """Write the outputs of all nodes of the batch into `y`. Inputs must not be modified."""
        raise NotImplementedError(f"{cls.__name__}.forward_batch")

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        """Overwrite each wanted `dx` with its gradient. The executor adds; a node never does."""
        raise NotImplementedError(f"{cls.__name__}.backward_batch")

    @classmethod
    def workspace(cls, batch: Batch) -> int:
        """Elements of scratch that forward needs while it runs, as `batch.scratch`."""
        return 0

    @classmethod
    def workspace_backward(cls, batch: Batch) -> int:
        """The same for backward."""
        return 0

    @classmethod
    def saved(cls, batch: Batch) -> dict[str, tuple[int, int]]:
        """Arrays (rows, width) that forward leaves for backward beyond inputs and output."""
        return {}

    @classmethod
    def recompute_of(cls, nodes: Sequence[Node]) -> int:
        """What `Batch.recompute` of these nodes is, unless it is set."""
        return 0

    @classmethod
    def recompute_choices(cls, batch: Batch) -> list[int]:
        """Values of `batch.recompute` worth a try besides 0, the fastest first.

        Each leaves less for backward, or makes it smaller; `saved`, `workspace` and
        `workspace_backward` say how much.
        """
        return []

    @classmethod
    def operations(cls, batch: Batch) -> int:
        """What forward costs, about: by it `memory_limit` chooses what to run again.

        Multiply-adds of its products, and `ELEMENT` for each element that it writes.
        """
        factors = sum([p.size for p in batch.first.all_parameters() if p.value.ndim > 1])
        return sum([node.rows * (factors + ELEMENT * node.width) for node in batch.nodes])

    @classmethod
    def index_bytes(cls, batch: Batch) -> int:
        """Index tables of the batch while it runs, in bytes: offsets, and what a type adds."""
        return INDEX_BYTES * (len(batch.nodes) + 1)

    @classmethod
    def saves(cls) -> bool:
        """Whether forward leaves arrays beside the output."""
        return cls.saved.__func__ is not Node.saved.__func__  # type: ignore[attr-defined]

    @classmethod
    def reads_values(cls) -> bool:
        """Whether backward reads anything that forward made."""
        return bool(cls.retains.inputs) or cls.retains.output or cls.saves()

    # The value ----------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        if self.ndim == 2:
            return (self.rows, self.width)
        return (self.width,) if self.ndim == 1 else ()

    @shape.setter
    def shape(self, shape: Any) -> None:
        raise self._fixed("shape", "F.reshape(x, shape) is a node of that shape")

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of all values it stands for: its own, unless it is a call that returned a tuple."""
        return (self.shape,)

    @property
    def value(self) -> Array:
        """A copy of the value as a NumPy array; runs what is needed, batched."""
        return self.graph.value(self)

    @value.setter
    def value(self, value: Any) -> None:
        raise self._fixed("value", "F.input(graph, array) is a node of another value")

    @property
    def gradient(self) -> Array:
        """d loss / d value, after `graph.backward` with this node kept (`keep()`)."""
        return self.graph.gradient(self)

    @gradient.setter
    def gradient(self, gradient: Any) -> None:
        raise self._fixed("gradient", "parameters have a grad that can be changed")

    @property
    def device_value(self) -> Array:
        """A copy of the value where the graph is: on a GPU a CuPy array, which nobody waits for.

        Like `value` it runs what is needed. It is the caller's own: made in one launch on CuPy's
        current stream, not part of the arena, and valid as long as it is held, whatever becomes of
        the graph. `torch.from_dlpack(node)` and every other reader of DLPack get it so.
        """
        return self.graph.device_value(self)

    @property
    def device_gradient(self) -> Array:
        """A copy of `gradient` where the graph is; as `device_value`."""
        return self.graph.device_gradient(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.dlpack_device(getattr(self.graph, "device", backend.CPU))

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
        """Keep value and gradient readable after backward. Returns the node."""
        self.graph.keep(self)
        return self

    # Operators: the modules that define the operations enter them in `OPERATIONS`.

    def __add__(self, other: Any) -> Node:
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: Any) -> Node:
        return OPERATIONS["add"](self, other)

    def __sub__(self, other: Any) -> Node:
        return OPERATIONS["subtract"](self, other)

    def __rsub__(self, other: Any) -> Node:
        return OPERATIONS["subtract"](other, self)

    def __mul__(self, other: Any) -> Node:
        return OPERATIONS["multiply"](self, other)

    def __rmul__(self, other: Any) -> Node:
        return OPERATIONS["multiply"](self, other)

    def __truediv__(self, other: Any) -> Node:
        return OPERATIONS["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return OPERATIONS["divide"](other, self)

    def __matmul__(self, other: Any) -> Node:
        return OPERATIONS["matmul"](self, other)

    def __neg__(self) -> Node:
        return OPERATIONS["negative"](self)

    def __pow__(self, exponent: Any) -> Node:
        return OPERATIONS["pow"](self, exponent)

    def __rpow__(self, other: Any) -> Node:
        return OPERATIONS["pow"](other, self)

    def __gt__(self, other: Any) -> Node:
        return OPERATIONS["greater"](self, other)

    def __ge__(self, other: Any) -> Node:
        return OPERATIONS["greater_equal"](self, other)

    def __lt__(self, other: Any) -> Node:
        return OPERATIONS["less"](self, other)

    def __le__(self, other: Any) -> Node:
        return OPERATIONS["less_equal"](self, other)

    def __getitem__(self, rows: Any) -> Node:
        if type(rows) is int and self.ndim == 2 and 0 <= rows < self.rows:
            return OPERATIONS["row"](self, rows)
        return OPERATIONS["getitem"](self, rows)

    def __iter__(self) -> Any:
        raise DtypeError.at_caller(
            f"{self!r} is not iterable.\n"
            "  fix:  F.split(x, sizes, dim=0), or [x[t] for t in range(len(x))]; a recurrence is "
            "db.scan"
        )

    def __bool__(self) -> bool:
        raise DtypeError.at_caller(
            f"{self!r} has no truth value: nothing has been computed yet.\n"
            "  fix:  decide on node.value, which runs the graph up to here; an empty sentence is\n"
            "        node.rows == 0; a missing one is None"
        )

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DtypeError.at_caller(
                f"{self!r} is a scalar and has no length.\n"
                "  fix:  F.stack makes a vector of scalars"
            )
        return self.rows if self.ndim == 2 else self.width

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
            raise error.at_caller(f"{heading(self, problem)}\n  rule: {rule}\n  fix:  {fix}")

    def _fixed(self, name: str, fix: str) -> MissingAttributeError:
        return MissingAttributeError.at_caller(
            f"{self!r}: its {name} cannot be set.\n"
            "  rule: a node is what its operation gives, and never changes\n"
            f"  fix:  {fix}"
        )

    def label(self) -> str:
        """Type and index, as errors and reports call the node."""
        index = getattr(self, "index", None)
        return f"{type(self).__name__} #{'new' if index is None else index}"

    def __repr__(self) -> str:
        return f"{self.label()} {self.shape}"


def takes_lengths(kind: type[Node]) -> bool:
    """Whether nodes of a type batch where widths that are lengths differ, or are 0."""
    return kind.any_shape or kind.any_length


def intern_signature(node_type: type[Node], key: tuple[Any, ...]) -> int:
    """The integer that stands for `key` in this process."""
    found = _signatures.get(key)
    if found is not None:
        return found
    with _interning:  # another thread may have been first; the number is given out last
        found = _signatures.get(key)
        if found is None:
            found = len(_signature_types)
            _signature_types.append(node_type)
            _signature_keys.append(key)
            _signatures[key] = found
    return found


def signature_type(signature: int) -> type[Node]:
    """The node type behind an interned signature."""
    return _signature_types[signature]


def signature_parts(signature: int) -> list[tuple[str, Any]]:
    """What an interned signature holds besides the type, by name: see `Node.signature_names`."""
    values = _signature_keys[signature][1:]
    return list(zip(_signature_types[signature].signature_names(values), values, strict=True))


def heading(node: Node, problem: str) -> str:
    """How every message about a node begins: node, sentence, problem, and its inputs."""
    sentence = node.graph.sentence(node)
    where = "" if sentence is None else f", sentence {sentence}"
    lines = [f"{node.label()}{where}: {problem}."]
    for name, source in zip("abcdefgh", node.inputs, strict=False):
        shapes = ", ".join(map(str, source.shapes))
        lines.append(f"  {name}  {source.label():<16} {node.graph.dtype} {shapes}")
    if len(node.inputs) > 8:
        lines.append(f"  … {len(node.inputs) - 8} more inputs")
    return "\n".join(lines)


def not_a_node(what: str, value: Any) -> DtypeError:
    """The error for an array, a number or anything else where a node belongs."""
    fix = "turn arrays into nodes with F.input(graph, array)"
    if isinstance(value, Parameter):
        fix = "F.linear multiplies by a weight; F.parameter(graph, p) makes a parameter a node"
    elif _is_width(value):
        fix = (
            "x * number and x + number take numbers, F.constant(graph, number) is a node;\n"
            "        h = db.initial_state(graph, width) begins a loop that may run no step"
        )
    elif isinstance(value, bool | int | float | np.number):
        fix = "x * number and x + number take numbers; F.constant(graph, number) is a node"
    elif isinstance(value, list | tuple) and any([isinstance(each, Node) for each in value]):
        fix = "one node at a time; F.stack and F.concat join nodes to one"
    elif value is None:
        fix = "look where it comes from: a function may have forgotten to return its node"
    elif not isinstance(value, list | tuple) and isinstance(getattr(value, "nodes", None), list):
        fix = "the graph stands first where it is needed, as in F.input(graph, array), and not here"
    return DtypeError.at_caller(
        f"{what}: a node expected, got {type(value).__name__}.\n  fix:  {fix}"
    )


def _is_width(value: Any) -> bool:
    """Whether it may be a first state that no step has followed: a width, or a tuple of them."""
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_width, value))
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_number and bool(value > 0)


def require_nodes(what: str, *values: Any) -> None:
    """Raise `DtypeError` for the first value that is not a node."""
    for value in values:
        if not isinstance(value, Node):
            raise not_a_node(what, value)


def require_graph(what: str, graph: Any) -> None:
    """Raise `DtypeError` for what is no graph where one stands first."""
    if not hasattr(graph, "add_light") or isinstance(graph, type):
        raise DtypeError.at_caller(
            f"{what}: a graph expected, got {type(graph).__name__}.\n"
            "  rule: the graph stands first where no node says which it is\n"
            f"  fix:  with db.Graph() as graph: {what}(graph, …)"
        )


def as_ids(what: str, ids: Any, error: type[DynbatchError] = ShapeError) -> Array:
    """Ids as a one-dimensional int64 array, or an error that names `what`."""
    try:
        array = np.array(ids)  # a copy: the caller may write to `ids` before the graph runs
    except ValueError:
        array = np.empty((len(ids), 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        found = f"{array.dtype} of {array.ndim} dimension{'' if array.ndim == 1 else 's'}"
        fix = "pass one sentence's ids, e.g. [4, 17, 2]"
        if array.dtype.kind in "US":
            found, fix = "text", "give each word's id, from a vocabulary of yours"
        elif array.dtype.kind == "O":
            found = type(ids).__name__
        raise error.at_caller(
            f"{what}: a one-dimensional sequence of integers expected, got {found}.\n  fix:  {fix}"
        )
    return array.astype(np.int64, copy=False)


def same_width(nodes: Sequence[Node]) -> bool:
    """Whether all nodes have rows of one width."""
    return all(node.width == nodes[0].width for node in nodes)


def in_order(nodes: Sequence[Any]) -> bool:
    """Whether the values lie one after the other in one block, so that they are one stretch."""
    block, first = nodes[0]._block, nodes[0]._position
    if first is None:  # some columns of a row: see `cells.calls.call`
        return False
    return all([x._block is block and x._position == place for place, x in enumerate(nodes, first)])
