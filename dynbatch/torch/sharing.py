"""Parameters in one memory, seen by PyTorch and dynbatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.errors import DtypeError, GraphError, ShapeError
from dynbatch.kernels.runtime import dlpack
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter

FLOATS = (torch.float32, torch.float64)


class Link:
    """A parameter of dynbatch that follows one of PyTorch: the same memory, and frozen or not.

    PyTorch may put a tensor into other memory, as `module.double()` and `module.to("cuda")` do; the
    parameter then takes the new memory for its value.
    """

    def __init__(self, parameter: Parameter, tensor: Tensor) -> None:
        self.parameter = parameter
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
        tensor = nn.Parameter(tensor_of(parameter.value), requires_grad=not parameter.frozen)
        _register(weights, name.split("."), tensor)
        links.append(Link(parameter, tensor))
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
        links[id(tensor)] = Link(parameter, tensor)
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
    return SimpleNamespace(**members)


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
