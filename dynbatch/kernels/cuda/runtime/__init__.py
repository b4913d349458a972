"""Compiles, queues and launches CUDA kernels."""
