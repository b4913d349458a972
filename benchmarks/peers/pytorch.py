"""Common parts of the PyTorch peers: values, padding and packing, the update, kernels' names.

Nothing here is timed but `PyTorchContender.train`. Batches are padded or packed beforehand, and lie
on the device, as a `DataLoader` that works ahead would have it. Tensors are time-major, (T, B): no
LSTM has to transpose.
"""

from __future__ import annotations

import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from benchmarks.lengths import Batch
from benchmarks.measure import Contender
from benchmarks.networks import LEARNING_RATE, Array


class PyTorchContender(Contender):
    """A `nn.Module` and a fused Adam over it.

    Products are of `precision`, weights and gradients of float32. In "bfloat16" they are autocast,
    in which PyTorch gives cuDNN's LSTM float16.

    Args:
        device: where it computes: of PyTorch's names, "cpu" or "cuda".
    """

    def __init__(
        self, name: str, model: nn.Module, values: Mapping[str, Array], device: str = "cpu"
    ) -> None:
        self.name = name
        self.device = torch.device(device)
        load_values(model, values)
        self.model = model.to(self.device)
        trained = [p for p in model.parameters() if p.requires_grad]
        self._adam = torch.optim.Adam(trained, lr=LEARNING_RATE, fused=True)

    @abstractmethod
    def arrange(self, batch: Batch) -> Any:
        """A batch as tensors of the host, alone or in tuples and dataclasses."""

    @abstractmethod
    def forward(self, prepared: Any) -> Tensor:
        """The loss as a tensor."""

    def prepare(self, batch: Batch) -> Any:
        return placed(self.arrange(batch), self.device)

    def loss(self, prepared: Any) -> float:
        with torch.no_grad(), tf32(self.precision == "tf32"), self._autocast():
            return float(self.forward(prepared))

    def train(self, prepared: Any) -> float:
        return self.start(prepared)()

    def start(self, prepared: Any) -> Callable[[], float]:
        with tf32(self.precision == "tf32"):
            with self._autocast():
                loss = self.forward(prepared)
            self._adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self._adam.step()
        read: Callable[[], float] = loss.detach().item
        return read

    def compile(self) -> None:
        """Compile the loss, and so its gradient, for each shape of a batch when it first comes.

        What a first step of a shape takes is noted in `compile_seconds`: it is not timed.
        """
        torch._dynamo.config.cache_size_limit = 256  # else other shapes run uncompiled in the end
        known: set[Any] = set()
        eager, compiled = self.start, torch.compile(self.forward, dynamic=False)

        def start(prepared: Any) -> Callable[[], float]:
            begin, shapes = time.perf_counter(), _shapes(prepared)
            read = eager(prepared)
            if shapes not in known:
                known.add(shapes)
                self.compile_seconds += time.perf_counter() - begin
            return read

        self.forward, self.start = compiled, start  # type: ignore[method-assign]

    def _autocast(self) -> torch.autocast:
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    """Whether products on a GPU are of TF32 inside: cuDNN's would be by default, cuBLAS' not."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = is_allowed
        yield
    finally:
        for switch, was_allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = was_allowed


def _shapes(prepared: Any) -> Any:
    """The key that a compiled function is specialised to: tensors' shapes, and numbers."""
    if isinstance(prepared, Tensor):
        return tuple(prepared.shape)
    if isinstance(prepared, int):
        return prepared
    if is_dataclass(prepared):
        prepared = [getattr(prepared, field.name) for field in fields(prepared)]
    return tuple([_shapes(part) for part in prepared]) if isinstance(prepared, list | tuple) else ()


def placed(prepared: Any, device: torch.device) -> Any:
    """A copy whose tensors are on a device; the lengths of a packed batch stay on the host."""
    if isinstance(prepared, Tensor | nn.utils.rnn.PackedSequence):
        return prepared.to(device)
    if isinstance(prepared, tuple):
        return tuple(placed(part, device) for part in prepared)
    if is_dataclass(prepared) and not isinstance(prepared, type):
        parts = {f.name: placed(getattr(prepared, f.name), device) for f in fields(prepared)}
        return replace(prepared, **parts)
    return prepared


def load_values(model: nn.Module, values: Mapping[str, Array]) -> None:
    """Copy values in by name. What they lack, the recurrent biases, becomes zero and is frozen."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name in values:
                parameter.copy_(torch.from_numpy(values[name]))
            else:
                parameter.zero_()
                parameter.requires_grad_(False)


def tensors(sentences: Sequence[Array]) -> list[Tensor]:
    return [torch.from_numpy(np.asarray(sentence, np.int64)) for sentence in sentences]


def padded(sentences: Sequence[Array], filler: int) -> Tensor:
    """(T, B) ids, T the longest length."""
    return pad_sequence(tensors(sentences), padding_value=filler)


def packed(sentences: Sequence[Array]) -> nn.utils.rnn.PackedSequence:
    """Ids with no padding; the sentences must come longest first."""
    return pack_sequence(tensors(sentences))


def longest_first(sentences: Sequence[Array]) -> Array:
    """Order that sorts the sentences by falling length."""
    return np.argsort([-len(sentence) for sentence in sentences], kind="stable")


# MKL and oneDNN say in verbose mode what they chose; both write to the process's standard output.
_PROBE = """
import torch
lstm, x = torch.nn.LSTM(128, 256), torch.zeros(8, 64, 128)
with torch.backends.mkl.verbose(1):
    torch.mm(x[0], x[0].T)
with torch.backends.mkldnn.verbose(1):
    lstm(x)
"""


@cache
def kernels() -> list[str]:
    """Lines that say which kernels PyTorch's CPU build runs: found by asking it, in a process."""
    probe = [sys.executable, "-c", _PROBE]
    said = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.splitlines()
    found = [f"vectorised loops for {torch.backends.cpu.get_cpu_capability()}"]
    for line in said:
        fields = line.split(",")
        if line.startswith("MKL_VERBOSE oneMKL"):
            found.append(line.removeprefix("MKL_VERBOSE "))
        elif len(fields) == 5 and fields[4].startswith("isa:"):
            found.append(f"oneDNN for {fields[4].removeprefix('isa:')}")
        elif "rnn" in fields[5:6]:
            found.append(f"oneDNN's LSTM, implementation {fields[6]!r}")
    return found
