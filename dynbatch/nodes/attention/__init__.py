"""Attention within one sentence: node types, and the functions that make nodes."""
