"""Scalar functions, written once as expressions: their NumPy, C and CUDA code and derivatives.

`docs/design/scalar.md` tells how one is written and printed.
"""
