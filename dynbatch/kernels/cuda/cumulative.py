"""The launch of `cumulative.cu`: running sums within segments."""

from dynbatch.kernels import cumulative as kernels
from dynbatch.kernels.cuda.walks import by_segments

cumsum_segments = by_segments(kernels.cumsum_segments)
