"""What users of PyTorch do with a parameter: it works if it has one meaning, or says the fix."""

from __future__ import annotations

from typing import NoReturn

from dynbatch.absent import Absent, HidesAbsent, NoOperators
from dynbatch.errors import DtypeError, ShapeError

NODE = "F.parameter(graph, p) makes it a node of a graph; p.value is the array"
VALUE = "p.value is the array; p.assign(numbers) copies numbers into it"
FROZEN = "p.frozen = True stops its gradient"
DEVICE = 'p.to("cuda") and p.to("cpu") move it, model.to(...) all of a model'
DTYPE = 'model.astype("float64") converts a model\'s parameters; a graph has one dtype'


class NoPartsError(DtypeError):
    """A parameter is indexed; a cell that meant the keys of its parameters says so."""


class AbsentOfParameter(HidesAbsent):
    """Base of `Parameter`: names that a tensor has and a parameter does not have."""

    __slots__ = ()

    data = Absent(VALUE)
    add_ = Absent(VALUE)
    copy_ = Absent(VALUE)
    fill_ = Absent(VALUE)
    mul_ = Absent(VALUE)
    normal_ = Absent(VALUE)
    uniform_ = Absent(VALUE)
    zero_ = Absent(VALUE)
    requires_grad = Absent(FROZEN)
    requires_grad_ = Absent(FROZEN)
    cpu = Absent(DEVICE)
    cuda = Absent(DEVICE)
    double = Absent(DTYPE)
    float = Absent(DTYPE)
    half = Absent(DTYPE)
    astype = Absent(DTYPE)
    numel = Absent("p.size")
    tolist = Absent("p.value.tolist(); p.numpy() is a copy on the host")
    backward = Absent("graph.backward(loss), of a node")
    clone = Absent("p.value.copy(), or copy.deepcopy(p) for a parameter of its own")
    detach = Absent("p.value is the array, which has no gradient")
    T = Absent(NODE)
    abs = Absent(NODE)
    add = Absent(NODE)
    argmax = Absent(NODE)
    clamp = Absent(NODE)
    div = Absent(NODE)
    dot = Absent(NODE)
    exp = Absent(NODE)
    expand = Absent(NODE)
    flatten = Absent(NODE)
    log = Absent(NODE)
    log_softmax = Absent(NODE)
    logsumexp = Absent(NODE)
    mT = Absent(NODE)
    matmul = Absent(NODE)
    max = Absent(NODE)
    mean = Absent(NODE)
    min = Absent(NODE)
    mm = Absent(NODE)
    mul = Absent(NODE)
    mv = Absent(NODE)
    neg = Absent(NODE)
    pow = Absent(NODE)
    relu = Absent(NODE)
    reshape = Absent(NODE)
    sigmoid = Absent(NODE)
    softmax = Absent(NODE)
    sqrt = Absent(NODE)
    squeeze = Absent(NODE)
    std = Absent(NODE)
    sub = Absent(NODE)
    sum = Absent(NODE)
    t = Absent(NODE)
    tanh = Absent(NODE)
    transpose = Absent(NODE)
    unsqueeze = Absent(NODE)
    var = Absent(NODE)
    view = Absent(NODE)


class ParameterHabits(NoOperators, AbsentOfParameter):
    """Base of `Parameter`: without a graph it cannot be a node, and its operators are errors."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        """2 for a matrix, 1 for a vector."""
        return len(self._shape())

    def item(self) -> float:
        """The value of one element as a number of Python.

        Raises:
            ShapeError: there are more elements, or none.
        """
        array = self.numpy()  # type: ignore[attr-defined]
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
        return self._shape()[0]

    def __bool__(self) -> bool:
        """A parameter that is there is true, whatever its length."""
        return True

    def __getitem__(self, key: object) -> NoReturn:
        raise NoPartsError(str(self._refused("has no parts")))

    def __setitem__(self, key: object, value: object) -> None:
        raise self._refused("has no parts: p.value[...] = numbers sets them")

    def _shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.shape  # type: ignore[attr-defined]
        return shape

    def _instead(self) -> str:
        return NODE
