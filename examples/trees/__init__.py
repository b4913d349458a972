"""Tree-LSTMs on data: ListOps, dependency trees, Python's syntax trees."""
