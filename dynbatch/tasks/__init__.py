"""Tasks: what is learned from a file of text, by name, with one way to train."""
