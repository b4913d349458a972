"""Python syntax for nodes: methods, operators, NumPy's protocols, and errors with the fix."""
