"""A batch of scans on a GPU: one product and one generated kernel a step."""
