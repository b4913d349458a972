"""Launches of `choosing.cu`."""
