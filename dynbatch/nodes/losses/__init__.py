"""Losses of one sentence, each a scalar."""
