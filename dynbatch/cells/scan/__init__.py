"""A cell along the tokens of sentences: one node a sentence."""
