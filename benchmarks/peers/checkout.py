"""Another checkout of dynbatch as a contender: what a change has gained, in one run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from benchmarks.lengths import Batch
from benchmarks.measure import Contender
from benchmarks.peers.worker_process import PeerUnavailable

_WORKER = Path(__file__).with_name("checkout_worker.py")


class CheckoutContender(Contender):
    """A workload in another checkout, in a process of its own.

    Args:
        folder:    the checkout's root.
        arguments: of `python -m benchmarks.run`, which the checkout's own parser reads.

    Raises:
        PeerUnavailable: the folder is no such checkout, or its process ended.
    """

    def __init__(self, folder: str, arguments: Sequence[str]) -> None:
        root = Path(folder).resolve()
        self.name = f"dynbatch in {root.name}"
        if not (root / "benchmarks" / "run.py").exists():
            raise PeerUnavailable(f"{root} is not a checkout of dynbatch with benchmarks/run.py.")
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        self.version = str(self._answer())

    def loss(self, prepared: Batch) -> float:
        return float(self._ask("loss", prepared))

    def train(self, prepared: Batch) -> float:
        return float(self._ask("train", prepared))

    def timed_train(self, prepared: Batch) -> float:
        """The worker's own seconds: sending the batch is not its work."""
        return float(self._ask("timed_train", prepared))

    def close(self) -> None:
        """End the worker and wait for it."""
        with suppress(BrokenPipeError):  # it has ended already, with a request unread
            cast(BinaryIO, self._process.stdin).close()
        cast(BinaryIO, self._process.stdout).close()
        self._process.wait()

    def _ask(self, method: str, batch: Batch) -> Any:
        requests = cast(BinaryIO, self._process.stdin)
        with suppress(BrokenPipeError):
            pickle.dump((method, batch), requests)
            requests.flush()
        return self._answer()

    def _answer(self) -> Any:
        try:
            return pickle.load(cast(BinaryIO, self._process.stdout))
        except EOFError:
            self.close()
            raise PeerUnavailable(
                f"{self.name} ended with status {self._process.returncode}; what it wrote is above."
            ) from None
