"""Cases of kernels, which `tests/kernels/test_table.py` and `cuda/test_table.py` beside it run."""

from tests.kernels.table import losses, norms, patches, reductions, segments
from tests.kernels.table.call import CASES

__all__ = ["CASES", "losses", "norms", "patches", "reductions", "segments"]
