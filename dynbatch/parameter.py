"""Parameters: the arrays that outlive every graph."""

from __future__ import annotations

import itertools
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np

from dynbatch import backend
from dynbatch.arguments import row_mask
from dynbatch.backend import Array, Device, DType, device_of, of_thread
from dynbatch.errors import BackendError, DtypeError, DynbatchError, ShapeError
from dynbatch.kernels.arrays import copy, download
from dynbatch.kernels.runtime import dlpack as exchange
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves, widened
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.kernels.runtime.writes import written
from dynbatch.parameter_habits import ParameterHabits
from dynbatch.row_sparse import Gradient, RowSparse, moved_gradient

_uids = itertools.count()
_settling = Lock()

UNNAMED = "parameter"
"""A parameter's name until it becomes an attribute of a module."""


class Parameter(ParameterHabits):
    """A trainable array, shared by every graph that uses it.

    Numbers take the dtype of the graph that reads them: an input's with each graph, a parameter's
    with the first. From then on it keeps its dtype: `Module.astype` converts it, and a graph of
    another one refuses it.

    Args:
        value: float32 or float64 numbers of any shape: an array of NumPy or of any library that
               speaks DLPack, on the host or on a GPU, or a list. An array is kept, not copied, when
               C-contiguous and writable, and of the first graph's dtype: NumPy then sees an
               optimizer's updates. Another library's tensor is shared so for good, with its dtype.
               JAX's arrays are copied.
        name:  what errors and checkpoints call it; `models.Module` fills it in.

    `grad` is None, a dense array of the parameter's shape, or `RowSparse` (tables read by
    `nodes.lookup`). `graph.backward` adds to it; `optimizer.step()` uses and then clears it.
    A `frozen` parameter receives no gradient, and neither do its `frozen_rows`. `norm` is what
    clipping measured on a GPU of this and other gradients, an `optim.GradientNorm`: the update is
    left out there unless it is finite.

    It has no graph, so it is not a node: beside a node, and inside a cell or a block, one is made
    of it; elsewhere `F.parameter(graph, p)` makes one. `p == q` is identity.

    Raises:
        DtypeError:   `value` is not float32 or float64, or a tensor with a gradient of its own.
        ShapeError:   `value` is a single number, or its rows have no numbers.
        BackendError: `value` is on a GPU other than CuPy's current one.
    """

    __slots__ = (
        "__weakref__", "_buffer", "_is_fresh", "_value", "frozen", "grad", "name", "norm",
        "row_is_frozen", "uid",
    )  # fmt: skip

    is_sized: ClassVar[bool] = True
    """Whether it has its values; those of `models.Linear(None, 3)` come with the first input."""

    def __init__(self, value: Any, name: str = UNNAMED) -> None:
        array = _as_array(name, value)
        if not array.ndim:
            raise ShapeError.at_caller(
                f"Parameter {name!r}: a single number.\n"
                "  rule: a parameter has one dimension or more\n"
                "  fix:  np.array([number]); it is repeated like a number where it is read"
            )
        if not array.shape[-1]:
            raise ShapeError.at_caller(
                f"Parameter {name!r}: its shape is {array.shape}.\n"
                "  rule: every row has at least one number; the number of rows may be 0\n"
                "  fix:  give it a width of 1 or more; a quotient, as width // heads, is 0 where\n"
                "        heads > width"
            )
        self._value: Array = array
        self._is_fresh = isinstance(value, np.ndarray | list | tuple)  # no graph has read it
        self.grad: Gradient | None = None
        self.norm: Any = None
        self.name = name
        self.frozen = False
        self.row_is_frozen: Array | None = None
        self.uid = next(_uids)
        self._buffer: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Host arrays, which load without a GPU too, and the device to put them on."""
        return {
            "value": transfer.to_host(self.value),
            "grad": moved_gradient(self.grad, backend.CPU),
            "name": self.name,
            "frozen": self.frozen,
            "frozen_rows": self.frozen_rows,
            "device": self.device.name,
            "is_fresh": self._is_fresh,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore as a separate parameter: nodes of two parameters must not share a kernel."""
        self._value, self.grad = state["value"], state["grad"]
        self.name, self.frozen = state["name"], state["frozen"]
        self.frozen_rows = state["frozen_rows"]
        self._is_fresh = state.get("is_fresh", False)
        self.norm = None
        self.uid = next(_uids)
        self._buffer = None
        self.to(state["device"])

    @property
    def value(self) -> Array:
        """The array itself, which every graph reads when it runs; it may be written to.

        Another array may take its place where it has the same shape, dtype and device.

        Raises:
            ShapeError:   when it is set: the array has another shape.
            DtypeError:   it is not an array, or of another dtype.
            BackendError: it is on another device.
        """
        return self._value if of_thread.module is None else self.here._value

    @value.setter
    def value(self, array: Array) -> None:
        if array is not self._value:
            self._require_alike(array)
            self._value = array

    def _require_alike(self, array: Any) -> None:
        """Raise an error unless an array can replace the value."""
        error: type[DynbatchError] | None = None
        if not isinstance(array, np.ndarray) and not backend.is_device_array(array):
            error, said = DtypeError, f"a {type(array).__name__}"
        elif array.shape != self.shape:
            error, said = ShapeError, f"an array {array.shape}"
        elif array.dtype != self._value.dtype:
            error, said = DtypeError, f"an array of {array.dtype}"
        elif device_of(array) != self.device:
            error, said = BackendError, f"an array on the {device_of(array).name}"
        if error is not None:
            where = self.device.name
            raise error.at_caller(
                f"Parameter {self.name!r}: its value cannot become {said}.\n"
                f"  rule: a {self._value.dtype} array {self.shape} on the {where}: nodes, gradient "
                "and optimizer state are made for it\n"
                "  fix:  parameter.assign(numbers) converts and copies; for other sizes make a new "
                "Parameter,\n        and its optimizer after it"
            )
        exchange.require_aligned(f"Parameter {self.name!r}", array)

    @property
    def frozen_rows(self) -> Array | None:
        """The rows of a matrix that stay as they are while others are trained; None if all are.

        They may be set to row numbers or to a mask, True for each frozen row; they are read as
        increasing row numbers, (F,) int64. Frozen rows receive no gradient, whatever reads the
        matrix: its gradient lacks them where it is `RowSparse`, else they are 0 in it. Optimizers
        of `optim` do not move them, be it by weight decay, momentum or moments of earlier steps. As
        `frozen`, they are copied and pickled with the parameter and not part of a state dict.

        Raises:
            ShapeError:    when they are set: the parameter is not a matrix, or the mask has not an
                entry for each row.
            DtypeError:    they are neither integers nor truth values.
            ArgumentError: there is no such row.

        Example:
            >>> import numpy as np
            >>> from dynbatch import optim
            >>> table = Parameter(np.ones((4, 2)))
            >>> table.frozen_rows = [0, 3]
            >>> table.grad = np.ones((4, 2))
            >>> optim.SGD([table], lr=0.5, momentum=0.9).step()
            >>> table.value[:, 0], table.frozen_rows
            (array([1. , 0.5, 0.5, 1. ]), array([0, 3]))
        """
        return None if self.row_is_frozen is None else np.flatnonzero(self.row_is_frozen)

    @frozen_rows.setter
    def frozen_rows(self, rows: Any) -> None:
        mask = None
        if rows is not None:
            mask = row_mask(f"Parameter {self.name!r}", "frozen_rows", rows, self.shape)
        self.row_is_frozen = mask if mask is not None and mask.any() else None

    @property
    def trained_rows(self) -> Array | None:
        """The numbers of the rows that are not frozen, increasing; None if no row is frozen."""
        return None if self.row_is_frozen is None else np.flatnonzero(~self.row_is_frozen)

    @property
    def here(self) -> Parameter:
        """The parameter itself; during a dry run in this thread, one on the planned device."""
        cupy = of_thread.module
        if cupy is None:
            return self
        twin: Parameter | None = cupy.parameters.get(self.uid)
        if twin is None:
            twin = cupy.parameters[self.uid] = _DryParameter(self, cupy)
        return twin

    def replace(self, array: Array) -> None:
        """Take an array of any dtype and device for the value, as `Module.astype` does.

        The gradient is left as it is.
        """
        self.settle()
        self._value = array

    def settle(self) -> None:
        """Keep the present dtype: a graph has read the value, or something else shares it."""
        self._is_fresh = False

    def settle_as(self, dtype: DType) -> bool:
        """Take the dtype of the first graph that reads it; False if it keeps another one."""
        if self._is_fresh:
            with _settling:  # of threads that read it first, one decides
                if self._is_fresh and self.grad is None and self.dtype != dtype:
                    self.replace(transfer.convert(self._value, dtype))
                self.settle()
        return bool(self.dtype == dtype)

    @property
    def device(self) -> Device:
        """The device of the value."""
        return device_of(self._value)

    def to(self, device: str | Device) -> Self:
        """Move value and gradient to "cpu", "cuda" or "cuda:1", in place.

        Raises:
            BackendError: the device is not available, or a GPU and the value lies in 16 bits.
        """
        where = backend.device(device)
        if where != self.device:
            if self.is_short:
                raise BackendError.at_caller(
                    f"Parameter {self.name!r} lies in 16 bits, and is to be on {where.name}.\n"
                    "  rule: parameters in 16 bits are read on the CPU\n"
                    f'  fix:  model.astype("float32").to({where.name!r})'
                )
            self._value = transfer.to_device(self.value, where)
            self.grad = moved_gradient(self.grad, where)
            self._buffer = None
        return self

    def numpy(self) -> Array:
        """A copy of the value on the host, in float32 where it lies in 16 bits."""
        return widened(self._value) if self.is_short else download(self._value)

    def assign(self, values: Array) -> None:
        """Copy host values of the parameter's shape into its array, on any device.

        One that lies in 16 bits gets an array of its own, of the nearest bfloat16 of each value.

        Raises:
            ShapeError: they have another shape.
        """
        if np.shape(values) != self.shape:
            raise ShapeError.at_caller(
                f"Parameter {self.name!r}: values {np.shape(values)} for a parameter {self.shape}."
                f"\n  rule: a value for each element\n  fix:  np.broadcast_to(values, "
                f"{self.shape}), to repeat them"
            )
        if self.is_short:
            self._value = upper_halves(round_to(np.array(values, np.float32, order="C"), SHORT))
            return
        transfer.overwrite(self.value, values)
        if isinstance(self.value, np.ndarray):
            written([self.value])

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.dlpack_device(self.device)

    def __dlpack__(
        self, *, dl_device: tuple[int, int] | None = None, copy: bool | None = None, **options: Any
    ) -> Any:
        """Share the value itself: `torch.from_dlpack(parameter)` sees every update of it.

        With copy=True, or for a reader that wants memory of the host, a copy. Of a value in 16 bits
        a copy of the upper halves, as uint16: `torch.from_dlpack(p).view(torch.bfloat16)`.

        Raises:
            BufferError: a copy is needed, and copy is False.
        """
        self.settle()
        wants_host = dl_device is not None and dl_device[0] == exchange.HOST
        stream_of(self.device).flush()
        if self.is_short and copy is False:
            raise BufferError(f"parameter {self.name!r} lies in 16 bits: a reader needs a copy")
        if wants_host and self.device.is_cuda:
            if copy is False:
                raise BufferError(f"parameter {self.name!r} is on the GPU: the host needs a copy")
            array = self.numpy()
        else:
            array = self._value.copy() if copy or self.is_short else self._value
        return exchange.capsule(array, dl_device=dl_device, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._value.shape
        return shape

    @property
    def dtype(self) -> DType:
        return np.dtype(np.float32) if self.is_short else self._value.dtype

    @property
    def is_short(self) -> bool:
        """Whether the value lies in bfloat16: `value` is uint16 then, the upper halves of numbers.

        `models.load_pretrained(folder, dtype="bfloat16")` makes such parameters, which are read and
        not trained; `dtype` is that of their numbers, float32.
        """
        return bool(self._value.dtype == np.uint16)

    def shorten(self) -> None:
        """Round the value, float32 on the host, to bfloat16, and keep it in 16 bits: `is_short`.

        Raises:
            DtypeError:   it is float64.
            BackendError: it is on a GPU.
        """
        fix = 'model.to("cpu").astype("float32"), before it'
        if self.device.is_cuda:
            raise BackendError.at_caller(
                f"Parameter {self.name!r} is on {self.device.name}, and is to lie in 16 bits.\n"
                f"  rule: parameters in 16 bits are read on the CPU\n  fix:  {fix}"
            )
        if not self.settle_as(np.dtype(np.float32)):
            raise DtypeError.at_caller(
                f"Parameter {self.name!r} is {self.dtype}, and is to lie in 16 bits.\n"
                f"  rule: a bfloat16 is the upper half of a float32\n  fix:  {fix}"
            )
        if not self.is_short:
            self.replace(upper_halves(round_to(self._value, SHORT)))

    @property
    def size(self) -> int:
        return self._value.size

    @property
    def nbytes(self) -> int:
        return self._value.nbytes

    def zero_grad(self) -> None:
        """Forget the gradient. Its memory stays with the parameter for the next backward."""
        self.grad = self.norm = None

    @property
    def gradient_state(self) -> tuple[Gradient | None, Array | None]:
        """The gradient, and the memory it may lie in, for `put_back`."""
        return self.grad, self._buffer

    def put_aside(self) -> None:
        """Take the gradient away with its memory, which then stays unchanged."""
        if self.grad is not None:
            self.grad = self._buffer = None

    def put_back(self, state: tuple[Gradient | None, Array | None]) -> None:
        """Restore the gradient, and its memory too unless there was none."""
        self.grad, buffer = state
        if self.grad is not None:
            self._buffer = buffer

    def keep_gradient_in(self, memory: Array | None) -> None:
        """Move a dense gradient into this array, to which later ones are written, too.

        Args:
            memory: of the parameter's shape and dtype; None takes an array of its own.
        """
        grad = self.grad
        if grad is not None and not isinstance(grad, RowSparse) and grad is not memory:
            kept = self.empty_like() if memory is None else memory
            copy(grad, kept)
            self.grad = kept
        self._buffer = memory

    def gradient_buffer(self) -> Array:
        """An uninitialised array of the parameter's shape, reused from step to step."""
        buffer, value = self._buffer, self._value
        if buffer is None or buffer.dtype != value.dtype or type(buffer) is not type(value):
            buffer = self._buffer = self.empty_like()
        return buffer

    def empty_like(self) -> Array:
        """An uninitialised array of the parameter's shape, dtype and device."""
        array: Array = device_of(self.value).xp.empty(self.shape, self.dtype)
        return array

    def __repr__(self) -> str:
        where = "" if isinstance(self._value, np.ndarray) else ", cuda"
        dtype = SHORT if self.is_short else self.dtype
        return f"Parameter({self.name!r}, {dtype}{self.shape}{self.frozen_shown(', ')}{where})"

    def frozen_shown(self, before: str) -> str:
        """The frozen part of the parameter, as descriptions end; "" if nothing is."""
        if self.frozen:
            return f"{before}frozen"
        rows = self.frozen_rows
        return "" if rows is None else f"{before}{rows.size:,} row{'s' * (rows.size > 1)} frozen"


class _DryParameter(Parameter):
    """A parameter in a dry run: what the run leaves for it is no gradient of the parameter itself.

    Args:
        origin: the parameter, which stays as it is.
        cupy:   a `DryCupy`.
    """

    __slots__ = ()

    def __init__(self, origin: Parameter, cupy: Any) -> None:
        self.uid, self.name, self.norm = origin.uid, origin.name, None
        self.frozen, self.row_is_frozen = origin.frozen, origin.row_is_frozen
        value = origin._value  # on a GPU it would be float32
        value = np.empty(value.shape, np.float32) if origin.is_short else value
        self._value, self._buffer, self._is_fresh = cupy.asarray(value), None, False
        self.grad = moved_gradient(origin.grad, cupy.device)

    def gradient_buffer(self) -> Array:
        """An array that the step before has left."""
        if self._buffer is None:
            self._buffer = device_of(self.value).xp.empty(self.shape, self.dtype, stands=True)
        return self._buffer


class ModelBuffer(Parameter):
    """State of a model that runs change and no gradient does, such as running means.

    As PyTorch's buffers it is in state dicts and checkpoints, under the name of its attribute, and
    moves and converts with the model. It stands among the parameters, always `frozen`: setting that
    has no effect.
    """

    __slots__ = ()

    @property
    def frozen(self) -> bool:
        return True

    @frozen.setter
    def frozen(self, value: bool) -> None: ...


def _as_array(name: str, value: object) -> Array:
    """The value as a C-contiguous array of floats that may be written to."""
    said = "float32 or float64 expected, got"
    fix = "np.array(numbers, np.float32)"
    try:
        array: Any = exchange.writable(f"Parameter {name!r}", value)
        kind = str(array.dtype)
    except ValueError as error:  # lists of different lengths
        array, kind = None, f"a {type(value).__name__} that does not make an array ({error})"
    if array is not None and array.dtype.kind in "iub":
        fix = "values.astype(np.float32); ids and counts are not parameters"
    if kind not in ("float32", "float64"):
        if array is not None and array.dtype.kind in "OUS":
            kind = f"a {type(value).__name__}"
        raise DtypeError.at_caller(
            f"Parameter {name!r}: {said} {kind}.\n  rule: a parameter is an array of floats\n"
            f"  fix:  {fix}"
        )
    contiguous: Array = device_of(array).xp.ascontiguousarray(array)
    return contiguous
