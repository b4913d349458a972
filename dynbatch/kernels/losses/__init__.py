"""Kernels of losses and their gradients."""
