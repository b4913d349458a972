"""What kernels share on every device: dispatch, threads, DLPack, the way to the host."""
