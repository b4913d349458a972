"""Calls: a cell applied to nodes, recorded in tables and run in regions."""
