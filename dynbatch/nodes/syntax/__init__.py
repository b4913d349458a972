"""What a node does in Python: methods, operators, NumPy's protocols, and errors with the fix."""
