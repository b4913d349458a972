"""Gradient clipping, by global norm or by value."""

from __future__ import annotations

from math import inf, isfinite, sqrt

from dynbatch.arguments import number
from dynbatch.backend import CPU, Device, device_of
from dynbatch.errors import BackendError, NumericError
from dynbatch.kernels import clipping
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.named_parameters import Parameters, named
from dynbatch.optim.norm import GradientNorm, NamedGradient, not_finite
from dynbatch.row_sparse import RowSparse


def clip_grad_norm_(parameters: Parameters, max_norm: float) -> float | GradientNorm:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = √(Σ g²) over all of them.

    Args:
        parameters: a `Module`, an `Optimizer`, parameters or pairs; frozen ones and those without
            gradient are left out.
        max_norm:   `math.inf` only measures.
    Returns:
        The norm before clipping; 0.0 when there are no gradients. On a GPU a `GradientNorm`, which
        is waited for when it is read: float(norm).
    Cost: one read of the gradients, and one read and write more when they are scaled. On a GPU two
        launches, and one for each dtype more; nothing is waited for.

    Raises:
        NumericError: the norm is NaN or infinite; the gradients are as they were. On a GPU, where
            the norm is not known yet, see `GradientNorm`.
        BackendError: gradients are on the CPU and on a GPU.
        ArgumentError: `max_norm` is negative or NaN.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063, algorithm 1; 1e-6 as in PyTorch.
    """
    max_norm = number("clip_grad_norm_", "max_norm", max_norm, "[0, inf]")
    gradients = _gradients("clip_grad_norm_", parameters)
    device, values = _device_of("clip_grad_norm_", gradients), [each.values for each in gradients]
    if device.is_cuda:
        late = GradientNorm(gradients)
        if max_norm < inf:
            clipping.scale_to_norm(values, late.array, max_norm)
        for each in gradients:
            each.parameter.norm = late
        stream_of(device).flush()
        return late
    squares = clipping.Totals(values).read()
    norm = sqrt(sum(squares))
    if not isfinite(norm):
        raise NumericError(not_finite([each.name for each in gradients], squares))
    clipping.scale_to_norm(values, norm, max_norm)
    return norm


def clip_grad_value_(parameters: Parameters, clip_value: float) -> None:
    """Clip every element of all gradients to [-clip_value, clip_value]. NaN stays NaN.

    Raises:
        BackendError: gradients are on the CPU and on a GPU.
        ArgumentError: `clip_value` is negative or NaN.
    """
    clip_value = number("clip_grad_value_", "clip_value", clip_value, "[0, inf]")
    gradients = _gradients("clip_grad_value_", parameters)
    device = _device_of("clip_grad_value_", gradients)
    clipping.clip_values([each.values for each in gradients], clip_value)
    stream_of(device).flush()


def _gradients(owner: str, parameters: Parameters) -> list[NamedGradient]:
    gradients = []
    for name, parameter in named(owner, parameters):
        grad = parameter.grad
        if grad is not None and not parameter.frozen:
            values = grad.values if isinstance(grad, RowSparse) else grad
            gradients.append(NamedGradient(name, parameter, values))
    return gradients


def _device_of(what: str, gradients: list[NamedGradient]) -> Device:
    """The device that all are on; a GPU is made the current one."""
    devices = {device_of(each.values): each.name for each in gradients}
    if len(devices) > 1:
        places = [f"of {name!r} is on {device.name}" for device, name in devices.items()]
        raise BackendError(
            f"{what}: the gradient {', '.join(places)}.\n"
            "  fix: move the whole model, or clip each part by itself."
        )
    for device in devices:
        device.use()
        return device
    return CPU
