"""CUDA twins of the kernels: `NAME.cu` holds what `kernels/NAME.py` does, `NAME.py` launches it."""
