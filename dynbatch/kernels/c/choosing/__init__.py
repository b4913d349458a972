"""`kernels.losses` in C."""
