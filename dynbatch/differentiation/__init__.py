"""Gradients as nodes: rules that write a node's gradient with the functions of `F`."""

from dynbatch.differentiation.grad import grad, hvp
from dynbatch.differentiation.table import parameter_rule, rule

__all__ = ["grad", "hvp", "parameter_rule", "rule"]
