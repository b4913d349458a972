"""Doctests of `dynbatch.torch` run where PyTorch is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["dynbatch/torch"]
