"""DyNet as a contender: a worker process that gets the same values and the same batches."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from benchmarks.lengths import Batch
from benchmarks.measure import Contender
from benchmarks.networks import LEARNING_RATE, Array

_WORKER = Path(__file__).with_name("dynet_worker.py")


class PeerUnavailable(Exception):
    """A peer cannot run here; the message says why and what would change that."""


class DynetContender(Contender):
    """DyNet with automatic batching, in a process of its own.

    Args:
        workload: "tagger", "seq2seq" or "tree".
        values:   initial values, as PyTorch names them.
        python:   an interpreter that can import `dynet`; the running one if empty.

    Raises:
        PeerUnavailable: the interpreter cannot import `dynet`, or the worker ended.
    """

    def __init__(self, workload: str, values: Mapping[str, Array], python: str = "") -> None:
        self.name = "dynet"
        python = python or sys.executable
        probe = [python, "-c", "import importlib.util as u; print(u.find_spec('dynet') is None)"]
        try:
            found = subprocess.run(probe, capture_output=True, text=True, check=False).stdout
        except OSError:
            found = ""
        if found.strip() != "False":
            raise PeerUnavailable(
                f"{python} has no module dynet; pip install dyNET38, there or in another "
                "environment named by --dynet-python."
            )
        self._process = subprocess.Popen(
            [python, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "values.npz"
            arrays: dict[str, Any] = dict(values)
            np.savez(path, **arrays)
            request = {"workload": workload, "values": str(path), "learning_rate": LEARNING_RATE}
            self.version = str(self._ask({"do": "build", **request})["version"])

    def loss(self, prepared: Batch) -> float:
        return float(self._ask(_request("loss", prepared))["loss"])

    def train(self, prepared: Batch) -> float:
        return float(self._ask(_request("train", prepared))["loss"])

    def timed_train(self, prepared: Batch) -> float:
        """The worker's own seconds: sending the batch is not DyNet's work."""
        return float(self._ask(_request("train", prepared))["seconds"])

    def close(self) -> None:
        """End the worker and wait for it."""
        with suppress(BrokenPipeError):  # it has ended already, with a request unread
            cast(TextIO, self._process.stdin).close()
        cast(TextIO, self._process.stdout).close()
        self._process.wait()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        requests, answers = cast(TextIO, self._process.stdin), cast(TextIO, self._process.stdout)
        try:
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise PeerUnavailable(
                f"the DyNet worker ended with status {self._process.returncode}; what it wrote is "
                "above. Its memory does not grow: DYNET_MEM_MB in the environment sets it."
            )
        return cast(dict[str, Any], json.loads(line))


def _request(what: str, batch: Batch) -> dict[str, Any]:
    sentences = [[np.asarray(part).tolist() for part in parts] for parts in batch.sentences()]
    return {"do": what, "sentences": sentences}
