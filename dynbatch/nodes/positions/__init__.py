"""Positions of tokens: rotary embeddings, sinusoids, rows of a table."""
