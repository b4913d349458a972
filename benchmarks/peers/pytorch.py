"""What the PyTorch peers share: values, padding and packing, the update, names of kernels.

Nothing here is timed but `PyTorchContender.train`. Batches are padded or packed beforehand, as a
`DataLoader`'s workers would do. Tensors are time-major, (T, B): no LSTM has to transpose.
"""

from __future__ import annotations

import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from benchmarks.measure import Contender
from benchmarks.networks import LEARNING_RATE, Array

IGNORED = -100  # cross_entropy's default ignore_index: targets that are padding


class PyTorchContender(Contender):
    """A `nn.Module` and a fused Adam over it."""

    def __init__(self, name: str, model: nn.Module, values: Mapping[str, Array]) -> None:
        self.name = name
        self.model = model
        load_values(model, values)
        trained = [p for p in model.parameters() if p.requires_grad]
        self._adam = torch.optim.Adam(trained, lr=LEARNING_RATE, fused=True)

    @abstractmethod
    def forward(self, prepared: Any) -> Tensor:
        """The loss as a tensor."""

    def loss(self, prepared: Any) -> float:
        with torch.no_grad():
            return float(self.forward(prepared))

    def train(self, prepared: Any) -> float:
        loss = self.forward(prepared)
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return float(loss.detach())


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
