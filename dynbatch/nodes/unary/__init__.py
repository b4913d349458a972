"""Elementwise functions of one value: activations, powers, logarithms, sines.

`kernels/unary/` has each function's formula, from which its node type is made; the function that
users call is here, in a file of the same name. CONTRIBUTING lists what a new one needs.
"""
