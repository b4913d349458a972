"""Checks for node types, functions and cells of your own, each in one line of a test.

`check_gradient` compares backward with differences, `check_batching` a mini-batch with its
sentences one at a time, `check_device` a GPU with the CPU. `dynbatch.testing.strategies` (needs
hypothesis) draws lengths, ragged batches and whole random graphs, for `check_policies` (every
policy gives the same numbers), `check_limits` (no memory limit changes them) and `check_sentences`
(no sentence changes another's).
"""

from dynbatch.testing.batching import check_batching
from dynbatch.testing.device import check_device
from dynbatch.testing.gradient import check_gradient
from dynbatch.testing.policies import check_limits, check_policies, check_sentences
from dynbatch.testing.pool import FailingMemory, NanPool
from dynbatch.testing.precision import in_float64
from dynbatch.testing.probe import Probe
from dynbatch.testing.replay import load_graph, replay

__all__ = [
    "FailingMemory",
    "NanPool",
    "Probe",
    "check_batching",
    "check_device",
    "check_gradient",
    "check_limits",
    "check_policies",
    "check_sentences",
    "in_float64",
    "load_graph",
    "replay",
]
