"""Parameters in one memory, seen by PyTorch and dynbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, GraphError, MissingParameterError, ShapeError
from dynbatch.kernels.runtime import dlpack
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter

FLOATS = (torch.float32, torch.float64)


class Link:
    """A parameter of dynbatch that follows one of PyTorch: the same memory, and frozen or not.

    PyTorch may put a tensor into other memory, as `module.double()` and `module.to("cuda")` do; the
    parameter then takes the new memory for its value.
    """

    def __init__(self, name: str, parameter: Parameter, tensor: Tensor) -> None:
        self.name, self.parameter = name, parameter
        self._array: Array = parameter.value
        self._pointer = tensor.data_ptr()

    def follow(self, tensor: Tensor) -> None:
        """Look at the tensor anew, before a mini-batch.

        Raises:
            GraphError: the parameter's value was replaced, so that the tensor is not its memory.
            DtypeError, ShapeError: the tensor's new memory cannot be shared.
        """
        parameter = self.parameter
        if parameter.value is not self._array:
            raise GraphError.at_caller(
                f"Batched: the value of {parameter!r} was replaced by another array.\n"
                "  rule: inside PyTorch a parameter and its tensor are one memory; the tensor says "
                "where\n"
                "  fix:  parameter.assign(numbers) writes into it; module.double() and "
                'module.to("cuda") convert and move both'
            )
        if tensor.data_ptr() != self._pointer:
            parameter.replace(shared_array(parameter.name, tensor))
            parameter.grad = None
            self._array, self._pointer = parameter.value, tensor.data_ptr()
        parameter.frozen = not tensor.requires_grad


def follow(links: Sequence[Link], module: nn.Module) -> list[nn.Parameter]:
    """The module's parameters, followed by their links.

    Raises:
        ArgumentError: they have other names than the links.
    """
    tensors = dict(module.named_parameters())
    names = [link.name for link in links]
    if [*tensors] != names:
        gone, new = [name for name in names if name not in tensors], tensors.keys() - {*names}
        raise refused(
            "Batched", f"the module has lost {', '.join(gone) or 'none'} of its parameters and "
            f"got {', '.join(sorted(new)) or 'none'}, or their order has changed",
            "names of parameters stay; prune, weight_norm and parametrizations change them",
            "make Batched of the module as it is to be run",
        )  # fmt: skip
    for link, tensor in zip(links, tensors.values(), strict=True):
        link.follow(tensor)
    return list(tensors.values())


def shared_array(name: str, tensor: Tensor) -> Array:
    """A tensor's memory as an array.

    Raises:
        DtypeError: it is not float32 or float64.
        ShapeError: it is not contiguous.
    """
    if tensor.dtype not in FLOATS:
        raise DtypeError.at_caller(
            f"Batched: the parameter {name!r} is {tensor.dtype}.\n"
            "  rule: parameters are float32 or float64\n  fix:  module.float()"
        )
    if not tensor.is_contiguous():
        raise ShapeError.at_caller(
            f"Batched: the parameter {name!r} {tuple(tensor.shape)} is not contiguous.\n"
            "  rule: memory is shared in C order\n"
            "  fix:  parameter.data = parameter.data.contiguous(), before the module is made"
        )
    return dlpack.view(f"Batched: {name!r}", tensor.detach())


def tensor_of(array: Array) -> Tensor:
    """An array's memory as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


class Attributes(SimpleNamespace):
    """A module's parameters and the modules below it, by their names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        names = list(vars(self))
        fix = _instead_of_computed(name, names) or "; ".join(
            [*[f"p.{near} may be meant" for near in get_close_matches(name, names, 1)],
             "what is not trained, such as a buffer, is given as an argument or closed over"]
        )  # fmt: skip
        raise MissingParameterError.at_caller(
            f"Batched: the module has no parameter {name!r}.\n"
            f"  rule: its parameters and modules are read, {', '.join(names) or 'none'}; no "
            f"buffer, and nothing that\n        PyTorch computes when it calls the module\n"
            f"  fix:  {fix}"
        )


def _instead_of_computed(name: str, names: Sequence[str]) -> str:
    """The fix for a tensor that PyTorch computes of others, known by their names; else ""."""
    undone = {
        "parametrizations": f"nn.utils.parametrize.remove_parametrizations(module, {name!r})",
        f"{name}_g": f"nn.utils.remove_weight_norm(module, {name!r})",
        f"{name}_orig": f"nn.utils.prune.remove(module, {name!r}), or remove_spectral_norm",
    }
    undo = [fix for sign, fix in undone.items() if sign in names]
    return f"{undo[0]} before Batched is made; or leave the module to PyTorch" if undo else ""


def share(parameters: Any) -> tuple[nn.Module, Any, list[Link]]:
    """The parameters as PyTorch and as dynbatch see them.

    Args:
        parameters: a model of dynbatch, a dict of parameters of dynbatch, a module of PyTorch, or
            None.

    Returns:
        a module of PyTorch, what functions of dynbatch read parameters from, and a link for each of
        the module's `parameters()`.

    Raises:
        ArgumentError: `parameters` is something else.
        DtypeError:    a parameter lies in 16 bits.
    """
    if parameters is None:
        return nn.Module(), None, []
    if isinstance(parameters, nn.Module):
        return (parameters, *_of_torch(parameters))
    if isinstance(parameters, Module):
        named = dict(parameters.named_parameters())
    elif isinstance(parameters, Mapping) and _are_parameters(parameters):
        named = dict(parameters)
    else:
        raise refused(
            "Batched", f"parameters is {shown(parameters)}",
            "a model of dynbatch or a dict of db.Parameter, a torch.nn.Module, or None",
            "nn.ParameterDict({name: tensor}) makes a module of tensors",
        )  # fmt: skip
    weights = nn.Module()
    links = []
    for name, parameter in named.items():
        if parameter.is_short:
            raise DtypeError.at_caller(
                f"Batched: the parameter {name!r} lies in 16 bits.\n"
                "  rule: tensors of PyTorch share the memory of float32 and float64\n"
                '  fix:  model.astype("float32")'
            )
        parameter.settle()
        tensor = nn.Parameter(tensor_of(parameter.value), requires_grad=not parameter.frozen)
        _register(weights, name.split("."), tensor)
        links.append(Link(name, parameter, tensor))
    return weights, parameters, links


def _are_parameters(given: Mapping[Any, Any]) -> bool:
    return all([isinstance(k, str) and k and isinstance(p, Parameter) for k, p in given.items()])


def _register(module: nn.Module, path: list[str], tensor: nn.Parameter) -> None:
    """Put a tensor below a module, in modules of its path: names are then dynbatch's."""
    for name in path[:-1]:
        if name not in module._modules:
            module.add_module(name, nn.Module())
        module = module.get_submodule(name)
    module.register_parameter(path[-1], tensor)


def _of_torch(module: nn.Module) -> tuple[Any, list[Link]]:
    """The module's parameters as namespaces, lists and dicts of parameters of dynbatch."""
    links: dict[int, Link] = {}
    for name, tensor in module.named_parameters():
        parameter = Parameter(shared_array(name, tensor), name)
        parameter.settle()
        links[id(tensor)] = Link(name, parameter, tensor)
    return _tree(module, links), list(links.values())


def _tree(module: nn.Module, links: Mapping[int, Link]) -> Any:
    members = {
        **{name: links[id(tensor)].parameter for name, tensor in _own(module)},
        **{name: _tree(child, links) for name, child in module.named_children()},
    }
    if isinstance(module, nn.ModuleList | nn.ParameterList | nn.Sequential):
        return list(members.values())
    if isinstance(module, nn.ModuleDict | nn.ParameterDict):
        return members
    return Attributes(**members)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
