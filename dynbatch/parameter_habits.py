"""PyTorch's ways to use a parameter: they work if unambiguous, else the error says the fix."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dynbatch.absent import Absent, HidesAbsent, NoOperators, refuse
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, ShapeError

NODE = "F.parameter(graph, p) is a node, in a cell or a block p is one; p.value is the array"
VALUE = "p.value is the array; p.assign(numbers) copies numbers into it"
FROZEN = "p.frozen = True stops its gradient"
DEVICE = 'p.to("cuda") and p.to("cpu") move it, model.to(...) all of a model'
DTYPE = 'model.astype("float64") converts a model\'s parameters; a graph has one dtype'


home: ContextVar[Callable[[Any], Any] | None] = ContextVar("home", default=None)
"""Makes a node of a parameter where its graph is known: while a cell or a block runs."""


class NoPartsError(DtypeError):
    """A parameter was indexed, perhaps by a cell that meant a key of its parameters."""


class OfItsNode(Absent):
    """A method of nodes: where a parameter can be a node, it is its node's."""

    def __get__(self, owner: Any, kind: type | None = None) -> object:
        node = None if owner is None else owner._as_node()
        return super().__get__(owner, kind) if node is None else getattr(node, self._name)


class AbsentOfParameter(HidesAbsent):
    """Base of `Parameter`: names that tensors have and parameters lack."""

    __slots__ = ()

    numel = Absent("p.size")
    tolist = Absent("p.value.tolist(); p.numpy() is a copy on the host")
    backward = Absent("graph.backward(loss), of a node")
    clone = Absent("p.value.copy(), or copy.deepcopy(p) for a parameter of its own")
    detach = Absent("p.value is the array, which has no gradient")


refuse(
    AbsentOfParameter, VALUE,
    "data", "add_", "copy_", "fill_", "mul_", "normal_", "uniform_", "zero_",
)  # fmt: skip
refuse(AbsentOfParameter, FROZEN, "requires_grad", "requires_grad_")
refuse(AbsentOfParameter, DEVICE, "cpu", "cuda")
refuse(AbsentOfParameter, DTYPE, "double", "float", "half", "astype")
refuse(
    AbsentOfParameter, NODE,
    "T", "abs", "add", "argmax", "clamp", "div", "dot", "exp", "expand", "flatten", "log",
    "log_softmax", "logsumexp", "mT", "matmul", "max", "mean", "min", "mm", "mul", "mv", "neg",
    "pow", "relu", "reshape", "sigmoid", "softmax", "sqrt", "squeeze", "std", "sub", "sum", "t",
    "tanh", "transpose", "unsqueeze", "var", "view",
    kind=OfItsNode,
)  # fmt: skip


class ParameterHabits(NoOperators, AbsentOfParameter):
    """Base of `Parameter`: it belongs to no graph, so its operators are errors.

    Inside a cell or a block it is a node, of what the cell or the block is traced to.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...

        def numpy(self) -> Array: ...

    @property
    def ndim(self) -> int:
        """2 for a matrix, 1 for a vector."""
        return len(self.shape)

    def item(self) -> float:
        """The value of one element as a number of Python.

        Raises:
            ShapeError: there are more elements, or none.
        """
        array = self.numpy()
        if array.size != 1:
            raise ShapeError.at_caller(
                f"{self!r} is not one number.\n"
                "  rule: float(p), int(p) and p.item() read a value of one element\n"
                f"  fix:  {NODE}"
            )
        return float(array.item())

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        """A parameter is always true, whatever its length."""
        return True

    def _as_node(self) -> Any:
        make = home.get()
        return None if make is None else make(self)

    def __getitem__(self, key: object) -> Any:
        node = None if isinstance(key, str) else self._as_node()
        if node is None:
            raise NoPartsError(str(self._refused("has no parts")))
        return node[key]

    def __setitem__(self, key: object, value: object) -> None:
        raise self._refused("has no parts: p.value[...] = numbers sets them")

    def _instead(self) -> str:
        return NODE
