"""How CUDA kernels are compiled, queued and launched."""
