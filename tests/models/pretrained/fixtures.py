"""Tiny checkpoints made by `make_fixtures.py`, and what `transformers` computes with them."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

FOLDER = Path(__file__).parent / "fixtures"


def sentences(name: str) -> list[dict[str, Any]]:
    """Arrays of each sentence: `input_ids`, `labels`, `logits`, `hidden` and what else there is."""
    found: list[dict[str, Any]] = []
    with np.load(FOLDER / name / "expected.npz") as arrays:
        for key in arrays.files:
            word, _, place = key.partition(".")
            if place:
                found += [{} for _ in range(int(place) + 1 - len(found))]
                found[int(place)][word] = arrays[key]
    return found


def loss(name: str) -> float:
    """The cross-entropy at `labels`, summed over all tokens of all sentences."""
    with np.load(FOLDER / name / "expected.npz") as arrays:
        return float(arrays["loss"])


def gradients(name: str) -> dict[str, Any]:
    """The gradient of `loss` by the parameters' names in the checkpoint, laid out as stored."""
    return load_file(FOLDER / name / "gradients.safetensors")
