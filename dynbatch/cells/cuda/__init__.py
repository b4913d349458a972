"""A cell's loop on a GPU: one product and one generated kernel a step where the CPU has many."""
