"""Doubts a run: checked, guarded, dumped, replayed."""
