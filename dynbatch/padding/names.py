"""What reports call the forms that are compared, and the causes of a saving."""

PADDED_RANDOM = "padded, random"
PADDED_BUCKETED = "padded, bucketed"
UNPADDED_RANDOM = "unpadded, random"
UNPADDED_BUCKETED = "unpadded, bucketed"
RECOMPUTE = "recompute"
CAUSES = ("no padding", "chunked loss", "reused memory", RECOMPUTE)
"""Ways to save; the last is one that `recompute="sqrt"` switches on, and that costs time."""

FORMS = (PADDED_RANDOM, PADDED_BUCKETED, UNPADDED_RANDOM, UNPADDED_BUCKETED)

VALUES = ("activations", "kept for backward", "gradients")
"""Causes of `MemoryUse` that hold what a network computes; the rest are kernels' workspace, copies
and gaps."""
