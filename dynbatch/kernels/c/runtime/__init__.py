"""Compilation of C, and the cache, loading and calls of its functions."""
