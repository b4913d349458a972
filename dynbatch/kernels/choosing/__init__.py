"""Rows of logits become tokens: edited, cut, drawn from, ranked. A row stands by itself."""
