"""CUDA versions of kernels: `NAME.py` launches what `sources/NAME.cu` computes."""

from dynbatch.kernels import binary
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.scalar.c_printer import CudaPrinter
from dynbatch.kernels.unary import every_function

source.printed["unary.cuh"] = lambda: CudaPrinter().text(every_function())
source.printed["pairs.cuh"] = lambda: CudaPrinter().pairs(binary.FUNCTIONS.values())
