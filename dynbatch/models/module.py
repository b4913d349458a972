"""`Module`: a tree of parameters and sub-modules with a name for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike

from dynbatch import backend
from dynbatch.arguments import float_dtype, refused, state_differences, state_of
from dynbatch.attributes import attributes_of
from dynbatch.backend import Array, Device
from dynbatch.errors import ArgumentError, CheckpointError, DtypeError
from dynbatch.kernels.runtime import dlpack, transfer
from dynbatch.kernels.runtime.precision import widened
from dynbatch.models.members import members
from dynbatch.names import check_names
from dynbatch.parameter import UNNAMED, ModelBuffer, Parameter


class AwaitedSizes(NamedTuple):
    """The sizes of parameters that a state tells, where a layer was made without them.

    shapes: by `uid`.
    make:   gives the parameters first values of these shapes.
    """

    shapes: Mapping[int, tuple[int, ...]]
    make: Callable[[], None]


class Module:
    """Base of every model. Attributes that are parameters or modules are found, and such in lists,
    tuples, dicts, named tuples and dataclasses, at any depth and whenever they came there, and in
    `__slots__`.

    Names are attribute paths joined by dots, `"encoder.layers.0.weight_ih"`, and are the keys of
    `state_dict()`: places of lists, keys of dicts, names of fields. A parameter reachable by two
    paths (tied weights) appears once, under the first.

    Raises:
        ArgumentError: where an attribute is set, or later when parameters are listed: a set holds
            some, which has no order, or keys of a dict do, or a generator or another iterator is
            given, or two have one name.

    Example:
        >>> from dynbatch import models
        >>> class Tagger(models.Module):
        ...     def __init__(self):
        ...         self.embed = models.Embedding(50, 16)
        ...         self.dropout = models.Dropout(0.2)
        ...         self.project = models.Linear(16, 5)
        >>> Tagger()
        Tagger, 885 parameters
          embed Embedding: weight (50, 16)
          dropout Dropout
          project Linear: weight (5, 16), bias (5,)
    """

    training: bool = True

    def __new__(cls, *given: object, **named: object) -> Self:
        if (given or named) and cls.__init__ is object.__init__:  # which ignores them, after this
            raise refused(
                cls.__name__, "arguments are given, and it has no __init__",
                "a module takes what its __init__ does", "write one, or leave them out",
            )  # fmt: skip
        if named:
            check_names(cls, named)
        return super().__new__(cls)

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "forward" in vars(cls) and not any(["__call__" in vars(base) for base in cls.__mro__]):
            cls.__call__ = _without_call  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: object) -> None:
        for path, member in self._members_of(name, value):
            if isinstance(member, Parameter) and member.name == UNNAMED:
                member.name = path
        super().__setattr__(name, value)

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names, in order of assignment."""
        for name, value in self._members():
            if isinstance(value, Module):
                yield name, value

    def modules(self) -> Iterator[Module]:
        """This module and every module below it, each once."""
        seen: dict[int, Module] = {}
        waiting: list[Module] = [self]
        while waiting:
            module = waiting.pop()
            if id(module) not in seen:
                seen[id(module)] = module
                yield module
                waiting += reversed([child for _, child in module.children()])

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its path. Also writes the path into `parameter.name`."""
        listed: dict[str, Parameter] = {}
        seen: set[int] = set()
        for name, parameter in self._walk(prefix):
            if parameter.uid in seen:
                continue
            if name in listed:
                raise ArgumentError(
                    f"{type(self).__name__}: two parameters are called {name!r}, of shapes "
                    f"{listed[name].shape} and {parameter.shape}.\n"
                    "  rule: a name is the path to one parameter; a dot in a key may make two "
                    "paths alike\n  fix:  give one of the keys or attributes another name"
                )
            seen.add(parameter.uid)
            listed[name] = parameter
            parameter.name = name
            yield name, parameter

    def _members_of(self, name: str, value: object) -> Iterator[tuple[str, Module | Parameter]]:
        kinds: tuple[type[Module | Parameter], ...] = (Module, Parameter)
        return members(type(self).__name__, name, value, kinds)

    def _members(self) -> Iterator[tuple[str, Module | Parameter]]:
        """Parameters and modules of all attributes; those of modules below are not among them."""
        for name, value in attributes_of(self).items():
            yield from self._members_of(name, value)

    def _walk(self, prefix: str, above: tuple[Module, ...] = ()) -> Iterator[tuple[str, Parameter]]:
        members_found = list(self._members())
        for name, value in members_found:
            if isinstance(value, Parameter):
                yield prefix + name, value
        above = (*above, self)
        for name, value in members_found:
            if isinstance(value, Module) and not any([value is module for module in above]):
                yield from value._walk(f"{prefix}{name}.", above)

    def __repr__(self) -> str:
        walked = [parameter for _, parameter in self._walk("")]
        sizes = {
            p.uid: p.size if p.is_sized else 0 for p in walked if not isinstance(p, ModelBuffer)
        }
        title = f"{type(self).__name__}, {sum(sizes.values()):,} parameters{self._shapes()}"
        return "\n".join([title, *self._tree("  ")])

    def _shapes(self) -> str:
        """The module's own parameters, for its line of `repr`."""
        parameters = [
            (name, value) for name, value in self._members() if isinstance(value, Parameter)
        ]
        shapes = [p.shape if p.is_sized else "of the first input's width" for _, p in parameters]
        listed = [
            f"{name} {shape}{p.frozen_shown(' ')}"
            for (name, p), shape in zip(parameters, shapes, strict=True)
        ]
        return f": {', '.join(listed)}" if listed else ""

    def _tree(self, indent: str, above: tuple[Module, ...] = ()) -> Iterator[str]:
        above = (*above, self)
        for name, child in self.children():
            yield f"{indent}{name} {type(child).__name__}{child._shapes()}"
            if not any([child is module for module in above]):
                yield from child._tree(indent + "  ", above)

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [parameter for _, parameter in self.named_parameters()]

    def _sized_parameters(self) -> list[Parameter]:
        """Every parameter once; an error before any is changed if one has no values yet."""
        parameters = self.parameters()
        _ = [parameter.shape for parameter in parameters]
        return parameters

    def num_parameters(self) -> int:
        """Number of scalars in all parameters, trained or frozen; buffers do not count.

        Those that are trained: `sum([p.size for p in model.parameters() if not p.frozen])`.
        """
        counted = [p for p in self.parameters() if not isinstance(p, ModelBuffer)]
        return sum(parameter.size for parameter in counted)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameter values by name, on the host."""
        return {name: parameter.numpy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy values into the parameters, wherever these are.

        Checks every name, shape and dtype before it writes any. PyTorch's names are accepted where
        they differ (see `own_names`), and tensors of any library, on the host or on a GPU.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs; or an adapter is
                merged into the model.
            DtypeError:      values are not real numbers, or of a type that NumPy has not.
            ArgumentError:   the state is not a dict.
        """
        state = dict(state_of(self, state))
        self.require_unmerged(type(self).__name__)
        sizes: list[AwaitedSizes] = []
        for prefix, module in self._named_modules():
            module.own_names(state, prefix)
            if (of_module := module.sizes_in(state, prefix)) is not None:
                sizes.append(of_module)
        parameters = dict(self.named_parameters())
        known = {uid: shape for each in sizes for uid, shape in each.shapes.items()}
        wanted = {name: known.get(p.uid) or p.shape for name, p in parameters.items()}
        shapes = {name: np.shape(array) for name, array in state.items()}
        if differences := state_differences(wanted, shapes, "model"):
            raise CheckpointError(
                f"{type(self).__name__}: the state does not fit this model; nothing was loaded.\n"
                f"{differences}\n  fix: build the model with the sizes it was saved with."
            )
        values = {name: _host_values(name, state[name]) for name in parameters}
        for each in sizes:
            each.make()
        for name, parameter in parameters.items():
            parameter.assign(values[name])

    def own_names(self, state: dict[str, Array], prefix: str) -> None:
        """Rename in `state` what PyTorch names or lays out otherwise than this module does.

        Modules whose parameters are PyTorch's have nothing to do.

        Args:
            state:  values by name; it is changed in place.
            prefix: the path of this module, with a dot at its end; "" for the whole model.
        """

    def checkpoint_settings(self) -> dict[str, float]:
        """The numbers by which a model computes beside its parameters, by their paths.

        A checkpoint has them, and is loaded into a model with the same ones.
        """
        return {
            prefix + name: float(value)
            for prefix, module in self._named_modules()
            for name, value in module._settings()
        }

    def _settings(self) -> Iterator[tuple[str, float]]:
        """This module's own part of `checkpoint_settings`."""
        return iter(())

    def rewritten(self) -> set[int]:
        """Parameters, by `uid`, that hold other values than the model began with, though frozen."""
        return {uid for module in self.modules() for uid in module._rewritten()}

    def _rewritten(self) -> Iterator[int]:
        """This module's own part of `rewritten`."""
        return iter(())

    def require_unmerged(self, source: object) -> None:
        """Check that no adapter is merged into the model: unmerging would undo what is loaded.

        Args:
            source: what the error begins with, such as the path of the file.

        Raises:
            CheckpointError: one is.
        """
        if self.rewritten():
            raise CheckpointError.at_caller(
                f"{source}: an adapter is merged into this {type(self).__name__}; nothing was "
                "loaded.\n"
                "  rule: unmerging gives its weights their values from before, not those loaded\n"
                "  fix:  models.unmerge_adapter(model) for the values of an adapted model; "
                "models.remove_adapter(model) for those of a plain one"
            )

    def sizes_in(self, state: Mapping[str, Array], prefix: str) -> AwaitedSizes | None:
        """The sizes of this module's parameters that have none before a state tells them.

        Args:
            state, prefix: as in `own_names`.
        """
        return None

    def _named_modules(
        self, prefix: str = "", above: tuple[Module, ...] = ()
    ) -> Iterator[tuple[str, Module]]:
        """This module and those below it by every path, each path with a dot at its end."""
        yield prefix, self
        above = (*above, self)
        for name, child in self.children():
            if not any([child is module for module in above]):
                yield from child._named_modules(f"{prefix}{name}.", above)

    def train(self, mode: bool = True) -> Self:
        """Turn dropout, and statistics of batch norm, on (`mode=True`) or off, here and below."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Turn dropout off, here and below; batch norm uses its running statistics."""
        return self.train(False)

    def astype(self, dtype: DTypeLike) -> Self:
        """Convert every parameter to float32 or float64 in place, those in 16 bits, too.

        Gradients are forgotten.

        Raises:
            DtypeError: another dtype; nothing was converted.
        """
        dtype = float_dtype(self, dtype)
        for parameter in self._sized_parameters():
            parameter.replace(transfer.convert(widened(parameter.value), dtype))
            parameter.grad = None
        return self

    def to(self, device: str | Device) -> Self:
        """Move every parameter, with its gradient, to "cpu", "cuda" or "cuda:1" in place.

        An optimizer follows at its next step, with its state.

        Raises:
            BackendError: the device is not available; nothing was moved.

        Example:
            >>> from dynbatch import models
            >>> models.Linear(3, 2).to("cpu").weight.device
            Device('cpu')
        """
        where = backend.device(device)
        for parameter in self._sized_parameters():
            parameter.to(where)
        return self


def _host_values(name: str, value: object) -> Array:
    """Real numbers of an array of any library, on the host; shared if they are there already."""
    array = dlpack.view(f"state {name!r}", value)
    if array.dtype.kind not in "fiub":
        raise DtypeError.at_caller(
            f"state {name!r}: values of {array.dtype}.\n  rule: real numbers\n"
            "  fix:  give what state_dict() returned"
        )
    return transfer.to_host(array)


def _without_call(module: Module, *given: object, **named: object) -> NoReturn:
    """Stands for `__call__` where a class has `forward` only, as PyTorch's modules do."""
    raise refused(
        type(module).__name__, "called, and it has forward() only",
        "calling a module calls its __call__", "name the method __call__, or call model.forward(…)",
    )  # fmt: skip
