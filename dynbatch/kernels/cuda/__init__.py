"""CUDA versions of kernels: `NAME.py` launches what `sources/NAME.cu` computes."""
