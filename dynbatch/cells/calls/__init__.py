"""A cell applied to nodes: calls, recorded in tables and run in regions."""
