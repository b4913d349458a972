"""Kernels of attention, dot-product and additive, and its mask."""
