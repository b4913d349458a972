"""Transformers, written for one sentence: attention, feed-forward, layers, encoder and decoder."""
