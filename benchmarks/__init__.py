"""Side-by-side timings of dynbatch and its peers. Run as `python -m benchmarks.run WORKLOAD`."""
