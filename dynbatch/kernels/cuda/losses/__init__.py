"""CUDA versions of `kernels/losses/elementwise`."""
