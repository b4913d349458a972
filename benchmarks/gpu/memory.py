"""Memory of one side of one case on the card: a process of its own, so that no two mix.

dynbatch: its own pool (arenas) and CuPy's (parameters, gradients, optimizer, staging). CuPy's pool
keeps no peak; what it reserved, which is at least as much, counts as used. PyTorch: its allocator.
On neither side what CUDA's context and libraries take for themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.cases import PEERS, Case, case_of, parser
from benchmarks.measure import OURS, Contender
from dynbatch import backend
from dynbatch.memory.pool import pool_of

SIDES = (OURS, *sorted({name for names in PEERS.values() for name in names}))


def measure(case: Case, side: str, peer_device: str = "cuda") -> dict[str, Any]:
    """Bytes used at most and reserved after training on every mini-batch, twice.

    Of a peer that does not run here, why.
    """
    if side == OURS:
        _train(case, case.ours())
        return {"case": case.name, "side": side, **_of_dynbatch()}
    peers, skipped = case.peers([side], peer_device)
    if not peers:
        return {"case": case.name, "side": side, "skipped": skipped[side]}
    _train(case, peers[0])
    return {"case": case.name, "side": side, **_of_torch()}


def _train(case: Case, side: Contender) -> None:
    for _ in range(2):
        for batch in case.batches_of(side):
            side.train(side.prepare(batch))
    side.wait()


def _of_dynbatch() -> dict[str, int]:
    arenas = pool_of(backend.device("cuda"))
    rest = backend.cupy().get_default_memory_pool().total_bytes()
    return {
        "used_bytes": arenas.peak_bytes + rest,
        "reserved_bytes": arenas.reserved_bytes + rest,
        "arena_used_bytes": arenas.peak_bytes,
        "arena_reserved_bytes": arenas.reserved_bytes,
        "cupy_reserved_bytes": rest,
    }


def _of_torch() -> dict[str, int]:
    import torch

    return {
        "used_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON to standard output."""
    options = parser("memory", __doc__)
    options.add_argument("--side", default=OURS, choices=SIDES)
    given = options.parse_args(arguments)
    print(json.dumps(measure(case_of(given), given.side, given.device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
