"""Results of the examples, beside the same models in PyTorch: `python -m benchmarks.quality`.

Each task trains an example's own model twice: by dynbatch, and by PyTorch on the same arrays, with
the same initial values, mini-batches, optimizer and learning rates. Its formulas in PyTorch are
padded, or packed where padding would change the result. Both are then judged by the example's own
evaluation, so that what differs is training alone: rounding, and the masks of dropout.
"""
