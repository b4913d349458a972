"""CUDA versions of `kernels/attention/dot_product`."""
