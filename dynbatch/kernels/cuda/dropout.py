"""The launch of `dropout.cu`; its mask equals NumPy's bit for bit."""

from __future__ import annotations

from dynbatch.backend import Array
from dynbatch.kernels.cuda.walks import over_elements
from dynbatch.kernels.dropout import bounds_and_scales


def dropout(x: Array, streams: Array, probabilities: Array, offsets: Array, out: Array) -> None:
    tables = (streams, *bounds_and_scales(probabilities, x.dtype))
    over_elements("dropout", (x, *tables), offsets, out)
