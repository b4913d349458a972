"""Several processes that train, evaluate or generate as one: `connect` gives a `Communicator`."""

from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.connect import connect
from dynbatch.parallel.cost import Cost
from dynbatch.parallel.gradients import sum_gradients
from dynbatch.parallel.pipeline import PipelineResult, pipeline
from dynbatch.parallel.shards import balanced
from dynbatch.parallel.spread import spread

__all__ = [
    "Communicator",
    "Cost",
    "PipelineResult",
    "balanced",
    "connect",
    "pipeline",
    "spread",
    "sum_gradients",
]
