"""Debugging: check a run, guard it against NaN, dump and rebuild a graph."""
