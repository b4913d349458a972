"""C versions of kernels, compiled on this machine at their first use."""
