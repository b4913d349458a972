"""Shared by kernels on every device: dispatch, threads, DLPack, transfers to the host."""
