"""Gradients as nodes: rules that write a node's gradient with the functions of `F`."""

from dynbatch.differentiation.grad import grad, hvp

__all__ = ["grad", "hvp"]
