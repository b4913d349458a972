"""How C is compiled, kept, loaded and called."""
