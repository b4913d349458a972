"""Which nodes run together, and in which order."""
