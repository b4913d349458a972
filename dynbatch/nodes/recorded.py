"""`Recorded`: how a new node comes to its shape, its signature and its place in the graph.

A training step makes thousands of nodes, so this is where building a graph takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import attrgetter
from types import FunctionType
from typing import Any, ClassVar, NoReturn

from dynbatch.errors import EmptyBatchError, GraphError
from dynbatch.nodes.arguments import nodes_of, not_a_node
from dynbatch.nodes.node import ROWS, WIDTH, Node, Owner, Shape
from dynbatch.nodes.shape_rule import ANY_FIX, rule_of
from dynbatch.nodes.signature import intern_signature
from dynbatch.parameter import Parameter

LENGTH = "length"
"""The entry of a signature for a width that is a length."""

RULES = {"infer_shape", "infer_ragged", "signature", "signature_widths"}
"""The methods that a type may have for shape and signature, for which rows may not be kept."""


class Traits:
    """Traits of a type that each new node asks, by one look-up.

    Attributes:
        infers_ragged, names_widths: whether the type has rules of its own for these.
        static_values: the values of a node's static attributes; None if there are none. The others
            are as in `Operation`.
    """

    __slots__ = (
        "any_rank", "any_shape", "infers_ragged", "keeps_rows", "names_widths", "static_values",
        "takes_lengths",
    )  # fmt: skip

    def __init__(self, node_type: type[Recorded]) -> None:
        static = node_type.static
        self.any_rank = node_type.any_rank
        self.any_shape = node_type.any_shape
        self.infers_ragged = node_type._overrides("infer_ragged")
        self.keeps_rows = node_type.keeps_rows
        self.names_widths = node_type.any_length or node_type._overrides("signature_widths")
        self.static_values: Callable[[Any], Any] | None = attrgetter(*static) if static else None
        self.takes_lengths = node_type.takes_lengths


class Recorded(Node):
    """Base of `Operation`, which says what its attributes and hooks mean."""

    __slots__ = ()

    shape_rule: ClassVar[str] = ""
    shape_fix: ClassVar[str | Mapping[str, str]] = ANY_FIX
    static: ClassVar[tuple[str, ...]] = ()
    any_shape: ClassVar[bool] = False
    any_length: ClassVar[bool] = False
    any_rank: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = False
    variadic: ClassVar[bool] = False
    takes_lengths: ClassVar[bool]
    _traits: ClassVar[Traits]
    _written: ClassVar[frozenset[str]]  # what the type's own text sets

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        if Recorded in cls.__bases__:
            return
        cls.takes_lengths = cls.any_shape or cls.any_length
        names = cls._written = frozenset(vars(cls))
        if cls.shape_rule:
            cls._follow()
        elif "keeps_rows" not in names and names & RULES:
            cls.keeps_rows = False
        cls._traits = Traits(cls)
        cls.complete_as = _in_own_code(Recorded.complete_as)  # type: ignore[method-assign]
        inits = [vars(base).get("__init__") for base in cls.__mro__]
        inherited = next(f for f in inits if f is not None and not _is_copy(f))
        init = _in_own_code(inherited) if inherited is Recorded.__init__ else inherited
        cls.__init__ = init  # type: ignore[method-assign]

    @classmethod
    def _follow(cls) -> None:
        """Set what follows from the rule of shapes, where no type since its owner sets it."""
        owner = next(base for base in cls.__mro__ if "shape_rule" in vars(base))
        bases = cls.__mro__[: cls.__mro__.index(owner) + 1]
        written = {name for base in bases for name in vars(base).get("_written", vars(base))}
        checks = cls._overrides("check_shape") or "infer_shape" in written
        rule = rule_of(cls.shape_rule, frozenset(cls._attribute_names()), checks)

        def infer_shape(self: Recorded, *shapes: Shape) -> Shape:
            """Compile the rule, for the first node: an import makes all types, and few nodes."""
            function = rule.function(cls._overrides("check_given"))
            cls.infer_shape = function  # type: ignore[method-assign]
            return function(self, *shapes)

        traits = {
            "infer_shape": infer_shape,
            "any_rank": rule.takes_any_rank,
            "keeps_rows": not (checks or written & RULES) and rule.keeps_rows({*cls.static}),
        }
        for name, value in traits.items():
            if name not in written:
                setattr(cls, name, value)

    @classmethod
    def _attribute_names(cls) -> set[str]:
        """The names of the attributes that the type and its bases add to a node."""
        bases = cls.__mro__[: cls.__mro__.index(cls.base_of_types)]
        return {
            name
            for base in bases
            for part in ("__annotations__", "__slots__", "static")
            for name in vars(base).get(part, ())
        }

    @classmethod
    def _overrides(cls, hook: str) -> bool:
        """Whether a hook is overridden."""
        owner = next(base for base in cls.__mro__ if hook in vars(base))
        return owner is not Recorded and owner is not cls.base_of_types

    def __init__(self, *inputs: Node, graph: Owner | None = None, **attributes: Any) -> None:
        """Set the attributes, and what follows from these and from the inputs."""
        for name, value in attributes.items():
            setattr(self, name, value)
        self.inputs = inputs
        phase = ragged = 0
        try:
            owner = inputs[0].graph if graph is None else graph
            for x in inputs:
                if x.graph is not owner:
                    self._refuse_inputs(owner)
                if x.phase > phase:
                    phase = x.phase
                ragged |= x.ragged
        except (AttributeError, IndexError):
            if any([isinstance(x, Parameter) for x in inputs]):  # of a cell, or an error
                nodes = nodes_of(type(self).__name__, *inputs)
                self.__init__(*nodes, graph=graph, **attributes)  # type: ignore[misc]
                return
            self._refuse_inputs(graph)
            raise
        self.graph = owner
        self.phase = phase
        traits, known, key = self._traits, None, None
        if traits.keeps_rows and inputs and inputs[0].ndim < 3:
            first = inputs[0]
            ndim, rows, width = first.ndim, first.rows, first.width
            for x in inputs[1:]:
                if x.rows != rows or x.width != width or x.ndim != ndim:
                    break
            else:
                static = None if traits.static_values is None else traits.static_values(self)
                key = traits, static, len(inputs), ndim, width, ragged
                known = owner.widths.get(key)
        if known is not None:
            self.width, self.sig = known
            self.ndim = ndim
            self.rows = rows
            self.ragged = ragged if traits.takes_lengths else ROWS
        else:
            if not traits.any_rank:
                for x in inputs:
                    if x.ndim > 2:
                        self._refuse_rank(x)
            if len(inputs) == 1:
                shape = self.infer_shape(inputs[0].shape)
            else:
                shape = self.infer_shape(*[x.shape for x in inputs])
            ndim = self.ndim = len(shape)
            self.width = width = shape[-1] if ndim else 1
            self.rows = shape[0] if ndim == 2 else 1 if ndim < 2 else prod(shape[:-1])
            if traits.infers_ragged:
                ragged = self.infer_ragged()
            elif not (inputs and traits.takes_lengths):
                ragged = ROWS
            self.ragged = ragged
            if not width and not (ragged & WIDTH and traits.takes_lengths):
                self._refuse_no_features(f"the value would have shape {shape}")
            if ndim > 2:
                self._leading = shape[:-1]
            self.sig = self.signature()
            if key is not None:
                owner.widths[key] = width, self.sig
        self._block = None
        self.index = owner.add(self)

    def complete_as(
        self, inputs: tuple[Node, ...], graph: Owner,
        ndim: int, rows: int, width: int, ragged: int, sig: int,
    ) -> None:  # fmt: skip
        """Set what `__init__` does, where the maker of a node knows it and has set its attributes.

        It knows it where the graph has the signature of a node whose shapes were checked.
        """
        self.inputs = inputs
        phase = 0
        for x in inputs:
            if x.graph is not graph:
                self._refuse_inputs(graph)
            if x.phase > phase:
                phase = x.phase
        self.graph = graph
        self.phase = phase
        self.ndim = ndim
        self.rows = rows
        self.width = width
        self.ragged = ragged
        self.sig = sig
        self._block = None
        self.index = graph.add(self)

    def _refuse_no_features(self, problem: str) -> NoReturn:
        self.refuse(
            problem,
            "every row has at least one feature; only the number of tokens may be 0",
            "a width of 1 or more; an empty sentence of D features is np.zeros((0, D))",
        )

    def _refuse_rank(self, x: Node) -> NoReturn:
        self.refuse(
            f"{x!r} has {x.ndim} dimensions",
            "a value has at most two, but for the types that say any_rank: elementwise functions, "
            "products, norms, softmax, and functions of shapes",
            f"F.reshape(x, (-1, {x.width})) makes one row of all dimensions but the last",
        )

    def _refuse_inputs(self, owner: Owner | None) -> None:
        """Raise an error if the inputs are not nodes of one graph."""
        name = type(self).__name__
        if owner is None and not self.inputs:
            raise EmptyBatchError(f"{name}: no inputs, and no graph was given.")
        for node in self.inputs:
            if not isinstance(node, Node):
                raise not_a_node(name, node)
            owner = node.graph if owner is None else owner
            if node.graph is not owner:
                raise GraphError.at_caller(
                    f"{name}: inputs belong to different graphs ({node!r}).\n"
                    "  rule: every node of an expression has one owner\n"
                    "  fix:  build the sentence in one `with db.Graph()` block; give a cell what\n"
                    "        it reads of the sentence as `memory` or as a part of its state"
                )

    # The rule -----------------------------------------------------------------------------------

    def infer_shape(self, *shapes: Shape) -> Shape:
        """The output's shape from the inputs' shapes; checks them with `require`.

        A type with a `shape_rule` need not have it.
        """
        raise NotImplementedError(f"{type(self).__name__}.infer_shape")

    def check_shape(self, *shapes: Shape) -> Shape | None:
        """Raise an error of inputs that follow the `shape_rule`, and do not suit the node.

        Returns the sizes that have a prime in the rule, if any.
        """
        return None

    def infer_ragged(self) -> int:
        """The value's dimensions that are numbers of tokens, which differ between sentences.

        By default the rows are. A width is where it comes from a transpose, or where a type that
        works on any shape, or any length, reads such a width.
        """
        if not self.inputs or not self.takes_lengths:
            return ROWS
        ragged = 0
        for x in self.inputs:
            ragged |= x.ragged
        return ragged

    # The signature ------------------------------------------------------------------------------

    def signature(self) -> int:
        """An interned integer; equal ones may share a kernel. Derived, so that it cannot be wrong.

        It holds the type, the `static` attributes (parameters by identity) and, unless
        `any_shape`, the widths of inputs and output. Never lengths, never the batch.
        """
        node_type, inputs = type(self), self.inputs
        traits = self._traits
        values = traits.static_values
        static = None if values is None else values(self)
        key: tuple[Any, ...]
        if traits.any_shape:
            key = node_type, static, len(inputs)
        elif traits.names_widths:
            key = node_type, static, *self.signature_widths()
        else:
            key = node_type, static, self.width, *[x.width for x in inputs]
        known = self.graph.signatures.get(key)
        if known is None:
            known = self.graph.signatures[key] = self._new_signature(key[2:])
        return known

    def _new_signature(self, widths: Sequence[int | str]) -> int:
        """The signature where the graph has met none of these attributes and widths."""
        node_type = type(self)
        if 0 in widths and not (node_type.any_shape or node_type._traits.names_widths):
            self._refuse_no_features("it reads a value without features")
        key: list[Any] = [node_type]
        for name in node_type.static:
            value = getattr(self, name)
            key.append(("parameter", value.uid) if isinstance(value, Parameter) else value)
        if not node_type.any_shape:
            key += widths[:1]
        if not node_type.variadic:
            key.append(len(self.inputs))
            if not node_type.any_shape:
                key += widths[1:]
        return intern_signature(tuple(key))

    def signature_widths(self) -> list[int | str]:
        """The widths of output and inputs that must agree; `LENGTH` for those that need not."""
        nodes = (self, *self.inputs)
        if type(self).any_length:
            return [LENGTH if node.ragged & WIDTH else node.width for node in nodes]
        return [node.width for node in nodes]

    @classmethod
    def signature_names(cls, values: Sequence[Any]) -> list[str]:
        """The names of the entries of `signature` after the type, for `explain()`.

        Those of `static` attributes, "width", "inputs" (their number) and "input width". A type
        with a `signature` of its own overrides this too.
        """
        if cls._overrides("signature"):
            return ["part of the signature"] * len(values)
        names = list(cls.static)
        if not cls.any_shape:
            names.append("width")
        if not cls.variadic:
            names.append("inputs")
        return names + ["input width"] * (len(values) - len(names))


def _in_own_code(function: Any) -> FunctionType:
    """A copy for one type: CPython keeps with a code where attributes lie, of a type at a time."""
    copy = FunctionType(function.__code__.replace(), globals(), function.__name__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _is_copy(function: Any) -> bool:
    """Whether this is a type's copy of `Recorded.__init__`."""
    original: Any = Recorded.__init__
    name = getattr(function, "__qualname__", "")
    return function is not original and name == original.__qualname__
