"""C versions of kernels, compiled on this machine at their first use."""

from dynbatch.kernels.c.printed import PRINTED
from dynbatch.kernels.c.runtime import source

source.printed.update(PRINTED)
