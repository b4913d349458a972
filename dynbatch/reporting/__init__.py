"""Reports what a run did, and why."""
