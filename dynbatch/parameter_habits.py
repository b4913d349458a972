"""PyTorch's ways to use a parameter: they work if unambiguous, else the error says the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dynbatch.absent import Absent, HidesAbsent, NoOperators, refuse
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, ShapeError

NODE = "F.parameter(graph, p), in a cell F.parameter(x.graph, p), is a node; p.value is the array"
VALUE = "p.value is the array; p.assign(numbers) copies numbers into it"
FROZEN = "p.frozen = True stops its gradient"
DEVICE = 'p.to("cuda") and p.to("cpu") move it, model.to(...) all of a model'
DTYPE = 'model.astype("float64") converts a model\'s parameters; a graph has one dtype'


class NoPartsError(DtypeError):
    """A parameter was indexed, perhaps by a cell that meant a key of its parameters."""


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
)  # fmt: skip


class ParameterHabits(NoOperators, AbsentOfParameter):
    """Base of `Parameter`: it belongs to no graph, so its operators are errors."""

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

    def __getitem__(self, key: object) -> NoReturn:
        raise NoPartsError(str(self._refused("has no parts")))

    def __setitem__(self, key: object, value: object) -> None:
        raise self._refused("has no parts: p.value[...] = numbers sets them")

    def _instead(self) -> str:
        return NODE
