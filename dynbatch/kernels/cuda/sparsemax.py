"""Launches of `sparsemax.cu`: sparsemax within segments."""

from dynbatch.kernels import sparsemax as kernels
from dynbatch.kernels.cuda.walks import by_segments

sparsemax = by_segments(kernels.sparsemax)
sparsemax_backward = by_segments(kernels.sparsemax_backward)
