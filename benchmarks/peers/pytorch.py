"""What the PyTorch peers share: values, padding and packing, the update, names of kernels.

Nothing here is timed but `PyTorchContender.train`. Batches are padded or packed beforehand, as a
`DataLoader`'s workers would do. Tensors are time-major, (T, B): no LSTM has to transpose.
"""

from __future__ import annotations

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


def kernels() -> list[str]:
    """Lines that say which kernels PyTorch's CPU build runs."""
    config = torch.__config__.show().splitlines()
    wanted = ("Math Kernel", "MKL-DNN", "OpenMP", "CPU capability", "OpenBLAS")
    return [line.strip(" -") for line in config if any(word in line for word in wanted)]
