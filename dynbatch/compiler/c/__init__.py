"""Prints a program as C, and runs it."""
