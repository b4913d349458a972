"""CUDA versions of the kernels of attention."""
