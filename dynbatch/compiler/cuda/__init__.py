"""Prints a program's loop as CUDA kernels."""
