"""Runs a program as calls of NumPy."""
