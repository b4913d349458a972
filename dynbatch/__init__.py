"""dynbatch: write a network for one sentence; run the mini-batch unpadded.

Example:
    >>> import dynbatch as db
    >>> from dynbatch import nodes as F
    >>> with db.Graph() as graph:
    ...     means = [F.mean(F.input(graph, [1.0] * length)) for length in (1, 5, 2)]
    ...     float(F.sum(means).value)
    3.0
"""

import importlib
from typing import Any

from dynbatch import starting  # noqa: F401 - before all that takes time to import

# isort: split
from dynbatch import errors, memory, models, nodes, optim, testing
from dynbatch.batcher.planning.memory_use import MemoryUse
from dynbatch.batcher.schedule.policies import Policy
from dynbatch.blocks.block import block
from dynbatch.cells import Cell, cell, initial_state, scan, stack, total, zeros
from dynbatch.differentiation import grad, hvp
from dynbatch.driver import drive
from dynbatch.errors import DynbatchError
from dynbatch.gc_pause import set_gc_threshold
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.generate import generate
from dynbatch.generation.scoring import log_prob
from dynbatch.graph import Graph
from dynbatch.kernels.backends import backends
from dynbatch.kernels.blas import set_batch_invariant
from dynbatch.kernels.own_kernel import CudaKernel
from dynbatch.kernels.runtime.parallel import num_threads, set_num_threads
from dynbatch.models.predict import predict
from dynbatch.nodes.node import Node
from dynbatch.nodes.operation import Operation, Retain
from dynbatch.nodes.syntax.other_names import OF_DYNBATCH, missing
from dynbatch.parameter import Parameter
from dynbatch.ragged import Ragged
from dynbatch.random import seed
from dynbatch.reporting.node_types import NodeType, node_types
from dynbatch.row_sparse import RowSparse

__version__ = "0.2.0"

__all__ = [
    "Cell",
    "CudaKernel",
    "DynbatchError",
    "Engine",
    "GenerationConfig",
    "Graph",
    "MemoryUse",
    "Node",
    "NodeType",
    "Operation",
    "Parameter",
    "Policy",
    "Ragged",
    "Retain",
    "RowSparse",
    "backends",
    "block",
    "cell",
    "drive",
    "errors",
    "generate",
    "grad",
    "hvp",
    "initial_state",
    "log_prob",
    "memory",
    "models",
    "node_types",
    "nodes",
    "num_threads",
    "optim",
    "padding",
    "parallel",
    "pictures",
    "predict",
    "scan",
    "seed",
    "set_batch_invariant",
    "set_gc_threshold",
    "set_num_threads",
    "stack",
    "testing",
    "total",
    "train",
    "zeros",
]


def __getattr__(name: str) -> Any:
    """`padding`, `parallel`, `train`, … on first use: some need tqdm, PyTorch, …"""
    if name in ("padding", "parallel", "pictures", "torch", "train"):
        return importlib.import_module(f"dynbatch.{name}")
    raise missing(name, "dynbatch", "dynbatch", OF_DYNBATCH)


def _name_in_memory(name: str) -> Any:
    """`memory.compare_padding` on first use: it needs models and training."""
    if name == "compare_padding":
        return importlib.import_module("dynbatch.padding").compare_padding
    raise AttributeError(f"module 'dynbatch.memory' has no attribute {name!r}")


# What measures padding stands far above `memory`, which therefore cannot import it.
vars(memory)["__getattr__"] = _name_in_memory
