"""GPT-2 of Hugging Face's `transformers`, with random values, and what it generates padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.networks import Array


class TransformersGPT2:
    """The model, which generates for prompts of any lengths as one padded batch, with its cache.

    Args:
        sizes: under their names in `GPT2Config`.
        device: of PyTorch's names, "cpu" or "cuda".
    """

    def __init__(self, sizes: dict[str, Any], threads: int, seed: int, device: str = "cpu") -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        # Random logits hardly differ: with these values the best token is the best by far.
        config = transformers.GPT2Config(**sizes, initializer_range=0.1)
        self.model: Any = transformers.GPT2LMHeadModel(config).eval().to(device)
        self.device = device

    @property
    def versions(self) -> str:
        return f"transformers {transformers.__version__}, torch {torch.__version__}"

    def save(self, folder: Path) -> None:
        """Write a folder that both sides read."""
        self.model.save_pretrained(folder)

    def generate(self, prompts: Sequence[Array], lengths: Sequence[int]) -> list[list[int]]:
        """The greedy tokens of each prompt, as many as `lengths` says; all run to the longest."""
        longest, most = max(map(len, prompts)), max(lengths)
        ids, mask = np.zeros((2, len(prompts), longest), np.int64)
        for row, seen, prompt in zip(ids, mask, prompts, strict=True):
            row[longest - len(prompt) :], seen[longest - len(prompt) :] = prompt, 1
        with torch.no_grad():
            out = self.model.generate(
                torch.tensor(ids, device=self.device),
                attention_mask=torch.tensor(mask, device=self.device), do_sample=False,
                use_cache=True, min_new_tokens=most, max_new_tokens=most, pad_token_id=0,
                eos_token_id=None,
            )  # fmt: skip
        rows = out[:, longest:].tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]
