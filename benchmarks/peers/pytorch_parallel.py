"""PyTorch in several processes: `DistributedDataParallel` over gloo, as its good users write it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lengths import Batch
from benchmarks.peers.pytorch import PyTorchContender
from dynbatch.parallel import Communicator


class ForwardModule(nn.Module):
    """A contender's loss as the forward pass of a module, which `DistributedDataParallel` needs."""

    def __init__(self, contender: PyTorchContender) -> None:
        super().__init__()
        self.model = contender.model
        self._forward = contender.forward

    def forward(self, prepared: Any) -> Tensor:
        return self._forward(prepared)


class PyTorchSide:
    """A PyTorch peer that is trained by the processes of a communicator.

    Each process has equally many sentences of a mini-batch, as a `DistributedSampler` gives them;
    gradients are averaged in buckets while backward runs.

    Args:
        contender: in every process one of its own, with the same values.
        size:      number of processes; 1 trains alone.
        rank:      of this one.
    """

    def __init__(self, contender: PyTorchContender, size: int = 1, rank: int = 0) -> None:
        self._contender = contender
        self._size, self._rank = size, rank
        module = ForwardModule(contender)
        self._module: nn.Module = (
            module if size == 1 else DistributedDataParallel(module, gradient_as_bucket_view=True)
        )

    def train(self, batch: Batch) -> float:
        """Seconds of one training step with this process's part of a mini-batch."""
        own = slice(self._rank, None, self._size)
        prepared = self._contender.prepare(Batch(batch.sources[own], batch.targets[own]))
        begun = time.perf_counter()
        loss = self._module(prepared)
        self._contender._adam.zero_grad(set_to_none=self._size == 1)
        loss.backward()
        self._contender._adam.step()
        return time.perf_counter() - begun

    def gradients(self, batch: Batch) -> list[Any]:
        """The averaged gradients of a mini-batch; no update."""
        own = slice(self._rank, None, self._size)
        prepared = self._contender.prepare(Batch(batch.sources[own], batch.targets[own]))
        self._module(prepared).backward()
        trained = [each for each in self._contender.model.parameters() if each.requires_grad]
        found = [each.grad.detach().numpy().copy() for each in trained if each.grad is not None]
        self._contender._adam.zero_grad()
        return found


@contextmanager
def joined(communicator: Communicator) -> Iterator[None]:
    """PyTorch's own process group, for a block: gloo, where the communicator's ranks are."""
    with tempfile.TemporaryDirectory() as folder:
        path = communicator.broadcast_object(str(Path(folder) / "store"))
        distributed.init_process_group(
            "gloo", f"file://{path}", rank=communicator.rank, world_size=communicator.size
        )
        torch.set_num_threads(1)
        try:
            yield
        finally:
            communicator.barrier()
            distributed.destroy_process_group()
