"""dynbatch: write a network for one sentence; run the mini-batch unpadded."""

from dynbatch.cells import Cell, cell, scan
from dynbatch.graph import Graph
from dynbatch.kernels.parallel import num_threads, set_num_threads
from dynbatch.nodes.base import Node, Retain
from dynbatch.parameter import Parameter, RowSparse
from dynbatch.ragged import Ragged
from dynbatch.random import seed
