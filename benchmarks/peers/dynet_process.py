"""DyNet as a contender."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.networks import Array
from benchmarks.peers.worker_process import WorkerContender


class DynetContender(WorkerContender):
    """DyNet with automatic batching.

    Args:
        workload: "tagger", "seq2seq" or "tree".
        values:   initial values, as PyTorch names them.
        python:   an interpreter that can import `dynet`; the running one if empty.

    Raises:
        PeerUnavailable: the interpreter cannot import `dynet`, or the worker ended.
    """

    framework, module = "DyNet", "dynet"
    install = "pip install dyNET38, there or in another environment named by --dynet-python."
    worker = Path(__file__).with_name("dynet_worker.py")
    advice = " Its memory does not grow: DYNET_MEM_MB in the environment sets it."

    def __init__(self, workload: str, values: Mapping[str, Array], python: str = "") -> None:
        super().__init__("dynet", {"workload": workload}, values, python)
