"""Several processes that train, evaluate or generate as one: `connect` gives a `Communicator`."""

from dynbatch.parallel.communicator import Communicator
from dynbatch.parallel.connect import connect

__all__ = ["Communicator", "connect"]
