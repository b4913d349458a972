"""Nodes that select, join, repeat and rearrange values, without arithmetic."""
