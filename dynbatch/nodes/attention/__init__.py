"""Attention of one sentence: its nodes, and the functions that make them."""
