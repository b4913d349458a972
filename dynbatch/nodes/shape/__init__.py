"""Nodes that select, join, repeat and rearrange: no arithmetic."""
