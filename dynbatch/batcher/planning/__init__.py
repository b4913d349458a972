"""Plans a run's memory: its size, the place of each block, and recomputation."""
