"""Parameters in float64 for the time of a check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.arrays import download
from dynbatch.kernels.runtime import transfer
from dynbatch.kernels.runtime.precision import widened
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse

Parameters = Iterable[Parameter] | Module


def distinct(parameters: Parameters) -> list[Parameter]:
    """Every parameter once, in order; of a module, all that it holds."""
    members = parameters.parameters() if isinstance(parameters, Module) else parameters
    return list({parameter.uid: parameter for parameter in members}.values())


@contextmanager
def in_float64(parameters: Parameters) -> Iterator[list[Parameter]]:
    """Inside, the parameters hold float64 copies of their values and no gradients.

    Afterwards values and gradients are the arrays that they were before, and no graph has read them
    that had not before.

    Example:
        >>> import dynbatch as db
        >>> import numpy as np
        >>> weight = db.Parameter(np.ones((2, 3), np.float32))
        >>> with in_float64([weight]):
        ...     weight.dtype
        dtype('float64')
        >>> weight.dtype
        dtype('float32')
    """
    everyone = distinct(parameters)
    before = [(p.value, p.grad, p._is_fresh) for p in everyone]
    for parameter in everyone:
        parameter.replace(transfer.convert(widened(parameter.value), np.float64))
        parameter.grad = None
    try:
        yield everyone
    finally:
        for parameter, (value, grad, is_fresh) in zip(everyone, before, strict=True):
            parameter.replace(value)
            parameter.grad, parameter._is_fresh = grad, is_fresh


def dense_gradient(parameter: Parameter) -> Array:
    """A copy of the gradient on the host, of the parameter's shape; zeros where there is none."""
    grad = parameter.grad
    if grad is None:
        return np.zeros(parameter.shape, parameter.dtype)
    return download(grad.dense() if isinstance(grad, RowSparse) else grad)
