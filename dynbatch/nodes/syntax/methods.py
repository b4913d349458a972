"""The methods of PyTorch's tensors on nodes: each is a function of `F`, or an error with the fix.

Each name is an entry of a class; with `__getattr__`, CPython 3.11 would look up every attribute of
every node the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, TypeVar, cast

from dynbatch.absent import is_value
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, ShapeError
from dynbatch.nodes.syntax.absences import Absences
from dynbatch.nodes.syntax.numpy_protocols import NumpyProtocols
from dynbatch.nodes.syntax.registry import FUNCTIONS

Shape = tuple[int, ...]

N = TypeVar("N")  # Node, which derives from what is here


class Method:
    """`x.NAME(...)` is `F.NAME(x, ...)`, or F's function of another name.

    An attribute of that name in a user's node type takes precedence.
    """

    def __init__(self, function: str = "") -> None:
        self._function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self._function = self._function or name

    def __get__(self, node: Any, kind: type | None = None) -> Callable[..., Any]:
        function = FUNCTIONS[self._function]
        return function if node is None else MethodType(function, node)


class Methods(Absences, NumpyProtocols, Generic[N]):
    """Base of `Node`: PyTorch's names, for functions of `F` or for errors with the fix."""

    __slots__ = ()

    if TYPE_CHECKING:
        ndim: int
        rows: int
        width: int

        @property
        def shape(self) -> Shape: ...

        @property
        def value(self) -> Array: ...

        def label(self) -> str: ...

    # Functions of F ------------------------------------------------------------------------------

    abs = Method()
    add = Method()
    argmax = Method()
    ceil = Method()
    cumsum = Method()
    detach = Method()
    div = Method("divide")
    divide = Method()
    dot = Method()
    dropout = Method()
    eq = Method("equal")
    exp = Method()
    floor = Method()
    ge = Method("greater_equal")
    gt = Method("greater")
    le = Method("less_equal")
    log = Method()
    log_softmax = Method()
    logsumexp = Method()
    lt = Method("less")
    matmul = Method()
    max = Method()
    maximum = Method()
    mean = Method()
    min = Method()
    minimum = Method()
    mm = Method("matmul")
    mul = Method("multiply")
    multiply = Method()
    mv = Method("matmul")
    ne = Method("not_equal")
    neg = Method("negative")
    negative = Method()
    pow = Method()
    relu = Method()
    round = Method()
    sigmoid = Method()
    sign = Method()
    softmax = Method()
    sqrt = Method()
    squeeze = Method()
    std = Method()
    sub = Method("subtract")
    subtract = Method()
    sum = Method()
    tanh = Method()
    topk = Method()
    unsqueeze = Method()
    var = Method()

    def where(self, mask: object, other: object) -> N:
        """`F.where(mask, x, other)`."""
        node: N = FUNCTIONS["where"](mask, self, other)
        return node

    def split(self, sizes: object, dim: int | None = None, **habits: Never) -> list[N]:
        """`F.split(x, sizes, dim)`; for a matrix `dim` must be given.

        Raises:
            ShapeError: without `dim` PyTorch would cut the tokens, `F.split` the features.
        """
        return self._cut("split", sizes, dim, habits)

    def chunk(self, chunks: int, dim: int | None = None, **habits: Never) -> list[N]:
        """`F.chunk(x, chunks, dim)`; for a matrix `dim` must be given.

        Raises:
            ShapeError: without `dim` PyTorch would cut the tokens, `F.chunk` the features.
        """
        return self._cut("chunk", chunks, dim, habits)

    def _cut(self, name: str, into: object, dim: object, habits: Mapping[str, object]) -> list[N]:
        if dim is None and self.ndim == 2 and not habits:
            raise ShapeError.at_caller(
                f"{self!r}: x.{name}({into!r}) of a matrix does not say along which dim.\n"
                f"  rule: without dim PyTorch cuts dim 0, F.{name} dim -1: say which\n"
                f"  fix:  x.{name}({into!r}, dim=0) for tokens, x.{name}({into!r}, dim=-1) for "
                "features"
            )
        parts: list[N] = FUNCTIONS[name](self, into, -1 if dim is None else dim, **habits)
        return parts

    def clamp(self, min: float | None = None, max: float | None = None) -> N:
        """`F.clip(x, min, max)`."""
        return self._call("clip", min, max)

    clip = clamp

    def reshape(self, *shape: int | Shape) -> N:
        """`F.reshape(x, shape)`; the sizes one by one or as a tuple."""
        return self._call("reshape", _sizes(shape))

    view = reshape

    def flatten(self) -> N:
        """All elements as one vector, row by row."""
        return self._call("reshape", (-1,))

    def expand(self, *shape: int | Shape) -> N:
        """`F.expand(x, shape)`; -1 stands for the size that a dimension has."""
        sizes = _sizes(shape)
        sizes_now = (*[1] * (len(sizes) - self.ndim), *self.shape)
        kept = [b if a == -1 else a for a, b in zip(sizes, sizes_now, strict=False)]
        return self._call("expand", tuple(kept))

    def transpose(self, *dims: int) -> N:
        """`F.transpose(x, dim0, dim1)`; those of a matrix need not be named."""
        return self._call("transpose", *dims)

    def permute(self, *dims: int | Shape) -> N:
        """`F.permute(x, dims)`; the dims one by one or as a tuple."""
        return self._call("permute", _sizes(dims))

    def t(self) -> N:
        """`F.transpose(x)`; a vector or a scalar is its own transpose, as in PyTorch."""
        return self._call("transpose") if self.ndim == 2 else self._itself()

    @property
    def T(self) -> N:
        """`t()`, as a property. `F.unsqueeze(v, -1)` makes a column of a vector."""
        return self.t()

    @property
    def mT(self) -> N:
        """The last two dimensions in each other's place: of a matrix, or of each head's."""
        return self._call("transpose", *(() if self.ndim == 2 else (-2, -1)))

    def clone(self) -> N:
        """The node itself: its value never changes, so it needs no copy."""
        return self._itself()

    contiguous = copy = clone

    # Numbers -------------------------------------------------------------------------------------

    def item(self) -> float:
        """The value of one element as a number of Python; runs what is needed, batched.

        Raises:
            ShapeError: there are more elements, or none.
        """
        if self.rows * self.width != 1:
            raise ShapeError.at_caller(
                f"{self!r} is not one number.\n"
                "  rule: float(x), int(x) and x.item() read a value of one element\n"
                "  fix:  x.value is the array; F.sum(x) and F.mean(x) make a number of it"
            )
        return float(self.value.item())

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def numpy(self) -> Array:
        """`value`: a copy of the value as a NumPy array."""
        return self.value

    def tolist(self) -> Any:
        """The value as Python's lists and numbers."""
        return self.value.tolist()

    def size(self, dim: int | None = None) -> Any:
        """`shape`, or its entry `dim`."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """`ndim`: 2 for a matrix, 1 for a vector, 0 for a scalar."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements of the value."""
        return self.rows * self.width

    nelement = numel

    # Operators that a node type's module does not define -----------------------------------------

    def __rmatmul__(self, other: object) -> N:
        node: N = FUNCTIONS["matmul"](other, self)
        return node

    def __abs__(self) -> N:
        return self._call("abs")

    def __pos__(self) -> N:
        return self._itself()

    def __eq__(self, other: object) -> bool:
        """Identity, so that nodes can be found in lists and be keys.

        Raises:
            DtypeError: the other is a number, a list, an array or a parameter.
        """
        if isinstance(other, Methods) or not is_value(other):
            return NotImplemented
        raise DtypeError.at_caller(
            f"{self!r} == {type(other).__name__}: a node is equal to itself only.\n"
            "  rule: == between nodes is identity, so that `in`, sets and dicts work\n"
            "  fix:  F.equal(x, y) compares elements in the graph, x.value == y their values"
        )

    __hash__ = object.__hash__

    def __contains__(self, value: object) -> bool:
        return any([value is part for part in cast("Iterable[N]", self)])

    def __round__(self, digits: int | None = None) -> float:
        return round(self.item(), digits)

    def __mod__(self, other: object) -> NoReturn:
        raise self._no_operator("%", "compute it from x.value, outside the network")

    def __floordiv__(self, other: object) -> NoReturn:
        raise self._no_operator("//", "x / y, or x.value // y outside the network")

    def __and__(self, other: object) -> NoReturn:
        raise self._no_operator("&", "masks are numbers, 0 and 1: a * b")

    def __or__(self, other: object) -> NoReturn:
        raise self._no_operator("|", "masks are numbers, 0 and 1: a + b - a * b")

    def __invert__(self) -> NoReturn:
        raise self._no_operator("~", "masks are numbers, 0 and 1: 1 - x")

    __rmod__, __rfloordiv__, __rand__, __ror__ = __mod__, __floordiv__, __and__, __or__

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise DtypeError.at_caller(
            f"{self!r}: its elements cannot be set.\n"
            "  rule: values never change: a node is what its operation gives\n"
            "  fix:  F.where(mask, new, x), or F.concat([x[:k], row, x[k + 1:]], dim=0)"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise DtypeError.at_caller(
            f"{self!r} cannot be copied or pickled.\n"
            "  rule: a node belongs to its graph and is freed with it\n"
            "  fix:  use x itself, since values never change; to store it, x.value"
        )

    def _call(self, name: str, *arguments: object) -> N:
        node: N = FUNCTIONS[name](self, *arguments)
        return node

    def _itself(self) -> N:
        return cast("N", self)

    def _no_operator(self, sign: str, fix: str) -> DtypeError:
        return DtypeError.at_caller(f"{self!r} has no operator {sign}.\n  fix:  {fix}")


def _sizes(shape: tuple[Any, ...]) -> Shape:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
