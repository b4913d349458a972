"""Launches of `variance.cu`: variances and standard deviations of segments."""

from dynbatch.kernels import variance as kernels
from dynbatch.kernels.cuda.walks import by_elements

squared_deviations = by_elements(kernels.squared_deviations)
spread_backward = by_elements(kernels.spread_backward)
