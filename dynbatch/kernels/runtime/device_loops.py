"""The work of which loops of cells are made on a GPU, to be written on its stream.

`RowGathers` copy rows by index, `SumLaunches` add up rows of several arrays, a `MatrixProduct` lies
before or after a loop, and a `PreparedLoop` holds its steps.
"""

from dynbatch.kernels.cuda.attention.additive_steps import AdditiveSteps as AdditiveSteps
from dynbatch.kernels.cuda.gathers import SumLaunches as SumLaunches
from dynbatch.kernels.cuda.row_gathers import RowGathers as RowGathers
from dynbatch.kernels.cuda.runtime.joined import Works as Works
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop as PreparedLoop
from dynbatch.kernels.cuda.runtime.matrices import DeviceMatrix as DeviceMatrix
from dynbatch.kernels.cuda.runtime.matrices import matrix_of as matrix_of
from dynbatch.kernels.cuda.runtime.matrix_product import MatrixProduct as MatrixProduct
from dynbatch.kernels.cuda.runtime.packing import PerStep as PerStep
from dynbatch.kernels.cuda.runtime.queue import Queue as Queue
from dynbatch.kernels.cuda.runtime.queue import queue as queue
