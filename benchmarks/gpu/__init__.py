"""`make gpu-check`: everything that can only be shown on a GPU, in one command. See `check.py`."""
