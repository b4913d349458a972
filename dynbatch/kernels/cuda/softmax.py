"""Launches of `softmax.cu`: softmax and log-softmax within segments."""

from dynbatch.kernels import softmax as kernels
from dynbatch.kernels.cuda.walks import by_segments

softmax = by_segments(kernels.softmax)
softmax_backward = by_segments(kernels.softmax_backward)
log_softmax = by_segments(kernels.log_softmax)
log_softmax_backward = by_segments(kernels.log_softmax_backward)
