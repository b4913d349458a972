"""Prints a program as two Python functions of NumPy calls."""
