"""What memory costs: benchmarks of plans, limits, allocators and losses."""
