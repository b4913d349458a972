"""How much memory a run takes, where each block lies, and what is computed twice."""
