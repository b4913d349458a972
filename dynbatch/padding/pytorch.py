"""Bytes that a PyTorch training step holds, measured: on the CPU tensor by tensor.

PyTorch's CPU allocator counts nothing, so every tensor is watched from the operator that makes it
until its memory is free. What kernels take inside themselves is not seen, to PyTorch's favour.
"""

from __future__ import annotations

import importlib
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Tensor = Any
"""A `torch.Tensor`."""


def import_torch() -> Any:
    """PyTorch, by name: this module can be read where it is not installed.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            "PyTorch is not installed, so it cannot be measured.\n"
            "  fix:  pip install torch, or leave it out"
        ) from error


@dataclass(frozen=True)
class TorchStep:
    """Bytes that forward and backward of one mini-batch held and took.

    Args:
        peak_bytes:     most at once, without parameters, their gradients and what was there before.
        saved_bytes:    what autograd keeps for backward; None on a GPU.
        gradient_bytes: of the parameters' gradients.
        seconds:        of forward, backward and `update`, in a step that is not watched.
    """

    peak_bytes: int
    saved_bytes: int | None
    gradient_bytes: int
    seconds: float


def measure_torch(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    update: Callable[[], None] = lambda: None,
) -> TorchStep:
    """Measure a training step of PyTorch.

    Args:
        loss:       computes the loss of a mini-batch, whose tensors are there already.
        parameters: of the model; on a GPU its allocator's counters are read.
        update:     the optimizer's step, for the time.
    """
    torch, parameters = import_torch(), list(parameters)
    _clear(parameters)
    on_gpu = any(p.is_cuda for p in parameters)
    peak = _peak_on_gpu(loss, parameters) if on_gpu else _peak_on_cpu(loss, parameters)
    gradients = sum([_bytes(p.grad) for p in parameters if p.grad is not None])
    _clear(parameters)
    saved = None if on_gpu else _saved(loss, parameters)
    begin = time.perf_counter()
    loss().backward()
    update()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    _clear(parameters)
    return TorchStep(peak, saved, gradients, seconds)


def _clear(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _bytes(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def _peak_on_gpu(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """The allocator's peak without any gradient, though some may come after the peak."""
    torch = import_torch()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss().backward()
    torch.cuda.synchronize()
    gradients = sum([_bytes(p.grad) for p in parameters if p.grad is not None])
    return int(torch.cuda.max_memory_allocated() - before - gradients)


def _peak_on_cpu(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """The peak of all tensors' memory, without what holds a parameter's gradient in the end."""
    watch = _Watch()
    with watch.mode():
        loss().backward()
    held = {watch.alive.get(_key(p.grad)) for p in parameters if p.grad is not None}
    now = peak = 0
    for number, change in watch.log:
        if number not in held:
            now += change
            peak = max(peak, now)
    return peak


def _saved(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """Bytes that autograd keeps after forward, each tensor's memory once, without parameters."""
    of_parameters = {_key(parameter) for parameter in parameters}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if _key(tensor) not in of_parameters:
            sizes[_key(tensor)] = _bytes(tensor)
        return tensor

    with import_torch().autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss()
    del value
    return sum(sizes.values())


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Watch:
    """Logs when the memory of tensors is taken and when it is free.

    Attributes:
        log:   (number of the memory, + or - its bytes), in order.
        alive: number of the memory, by its address.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.alive: dict[int, int] = {}
        self._watching: dict[int, weakref.ref[object]] = {}
        self._leaves = importlib.import_module("torch.utils._pytree").tree_leaves
        self._type: Any = import_torch().Tensor

    def mode(self) -> Any:
        base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
        watch = self

        def dispatch(
            _: object,
            func: Callable[..., object],
            types: object,
            args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            results = func(*args, **(kwargs or {}))
            watch.note(results, (args, kwargs))
            return results

        return type("Watched", (base,), {"__torch_dispatch__": dispatch})()

    def note(self, results: object, arguments: object) -> None:
        """Log the memory of an operator's results, unless the memory was there before."""
        new = {_key(tensor): tensor for tensor in self._tensors(results)}
        before = {_key(tensor) for tensor in self._tensors(arguments)} if new else ()
        for key, tensor in new.items():
            if key not in self.alive and key not in before:
                number, size = len(self.log), _bytes(tensor)
                self.alive[key] = number
                self.log.append((number, size))
                freed = partial(self._free, key, number, size)
                self._watching[number] = weakref.ref(tensor.untyped_storage(), freed)

    def _tensors(self, tree: object) -> list[Tensor]:
        return [leaf for leaf in self._leaves(tree) if isinstance(leaf, self._type)]

    def _free(self, key: int, number: int, size: int, _: object) -> None:
        self.log.append((number, -size))
        if self.alive.get(key) == number:
            del self.alive[key]
