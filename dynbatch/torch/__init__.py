"""Parts of a PyTorch model that dynbatch runs: tensors in, tensors out, gradients both ways.

It needs PyTorch: `pip install 'dynbatch[torch]'`. `import dynbatch` alone does not import it.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"dynbatch.torch needs PyTorch, which cannot be imported ({error}).\n"
        "  fix:  pip install torch, or 'dynbatch[torch]'"
    ) from error

from dynbatch.torch.batched import Batched
from dynbatch.torch.sentences import Packed

__all__ = ["Batched", "Packed"]
