"""TensorFlow as a contender: the tagger, padded and of ragged tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.networks import Array
from benchmarks.peers.worker_process import WorkerContender

TENSORFLOW_PEERS = ("tensorflow-padded", "tensorflow-ragged")


class TensorflowContender(WorkerContender):
    """The tagger in TensorFlow; a padded batch's padding is read as words, as by `pytorch-padded`.

    Args:
        name:    of `TENSORFLOW_PEERS`.
        values:  initial values, as PyTorch names them.
        threads: of an operator.
        python:  an interpreter that can import `tensorflow`; the running one if empty.

    Raises:
        PeerUnavailable: the interpreter cannot import `tensorflow`, or the worker ended.
    """

    framework, module = "TensorFlow", "tensorflow"
    install = "pip install tensorflow-cpu in another environment, and name it by --tensorflow."
    worker = Path(__file__).with_name("tensorflow_worker.py")

    def __init__(
        self, name: str, values: Mapping[str, Array], threads: int, python: str = ""
    ) -> None:
        form = name.removeprefix("tensorflow-")
        self.is_exact = form == "ragged"
        super().__init__(name, {"form": form, "threads": threads}, values, python)
