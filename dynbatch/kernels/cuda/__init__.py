"""CUDA versions of kernels: `NAME.cu` does what `kernels/NAME.py` does, `NAME.py` launches it."""
