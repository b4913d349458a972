"""Frameworks as contenders in a worker process, which gets the same values and the same batches."""

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


class PeerUnavailable(Exception):
    """A peer cannot run here; the message says why and what would change that."""


class WorkerContender(Contender):
    """A framework in a process of its own.

    Args:
        name:    what reports call it.
        request: what the worker is told to build, besides values and learning rate.
        values:  initial values, as PyTorch names them.
        python:  an interpreter that can import `module`; the running one if empty.

    Attributes:
        framework, module: its name, and that of its module.
        install: how an interpreter gets it.
        worker:  the file that runs there.
        advice:  what to try if the worker ends.

    Raises:
        PeerUnavailable: the interpreter cannot import the module, or the worker ended.
    """

    framework: str
    module: str
    install: str
    worker: Path
    advice = ""

    def __init__(
        self, name: str, request: Mapping[str, Any], values: Mapping[str, Array], python: str
    ) -> None:
        self.name = name
        python = python or sys.executable
        probe = f"import importlib.util as u; print(u.find_spec('{self.module}') is None)"
        try:
            found = subprocess.run(
                [python, "-c", probe], capture_output=True, text=True, check=False
            ).stdout
        except OSError:
            found = ""
        if found.strip() != "False":
            raise PeerUnavailable(f"{python} has no module {self.module}; {self.install}")
        self._process = subprocess.Popen(
            [python, str(self.worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "values.npz"
            arrays: dict[str, Any] = dict(values)
            np.savez(path, **arrays)
            built = {**request, "values": str(path), "learning_rate": LEARNING_RATE}
            self.version = str(self._ask({"do": "build", **built})["version"])

    def loss(self, prepared: Batch) -> float:
        return float(self._ask(_request("loss", prepared))["loss"])

    def train(self, prepared: Batch) -> float:
        return float(self._ask(_request("train", prepared))["loss"])

    def timed_train(self, prepared: Batch) -> float:
        """The worker's own seconds: sending the batch is not the framework's work."""
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
                f"the {self.framework} worker ended with status {self._process.returncode}; what "
                f"it wrote is above.{self.advice}"
            )
        return cast(dict[str, Any], json.loads(line))


def _request(what: str, batch: Batch) -> dict[str, Any]:
    sentences = [[np.asarray(part).tolist() for part in parts] for parts in batch.sentences()]
    return {"do": what, "sentences": sentences}
