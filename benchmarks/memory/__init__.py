"""The cost of memory: benchmarks of plans, limits, allocators and losses."""
