"""LoRA's matrices: what they add to a linear map, or to the rows of a table, and to their weight.

    of a map    y = x Wᵀ + b + s (x Aᵀ) Bᵀ       W (O, I), A (r, I), B (O, r)
    of a table  y_t = (W + s A Bᵀ)[id_t]         W (V, D), A (V, r), B (D, r)

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, ClassVar

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.models.adapter import Adapter
from dynbatch.models.initial import made, normal, uniform
from dynbatch.models.lora.config import LoraConfig
from dynbatch.models.lora.targets import AdapterTarget
from dynbatch.models.module import Module
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter


class LoraMatrices(Module):
    """Base: A and B of some rows of a weight.

    Args:
        target: the rows.
        config: rank, scale and dropout.
        rng:    of the initial values.

    Parameters: lora_A and lora_B.
    """

    in_files: ClassVar[Mapping[str, tuple[str, bool]]]
    """The tensor of each parameter in PEFT's files, and whether it is transposed there."""

    lora_A: Parameter
    lora_B: Parameter

    def __init__(self, target: AdapterTarget, config: LoraConfig, rng: np.random.Generator) -> None:
        self.name, self.start, self.stop = target.name, target.start, target.stop
        self.rank, self.scale = config.rank(target.name), config.scale(target.name)
        self.dropout = config.lora_dropout

    def _settings(self) -> Iterator[tuple[str, float]]:
        yield "scale", self.scale

    @abstractmethod
    def __call__(self, read: Any) -> Node:
        """The summand of the layer's result, made of what the layer read."""

    @abstractmethod
    def change(self) -> Array:
        """The summand of the weight's rows when it is merged, on the host."""

    def scaled(self, x: Node) -> Node:
        return x if self.scale == 1 else x * self.scale


class LoraOfMap(LoraMatrices):
    """s (x Aᵀ) Bᵀ for a linear map, x (T, I) -> (T, O)."""

    in_files: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "lora_A": ("lora_A.weight", False), "lora_B": ("lora_B.weight", False),
    }  # fmt: skip

    def __init__(self, target: AdapterTarget, config: LoraConfig, rng: np.random.Generator) -> None:
        super().__init__(target, config, rng)
        first, second = (self.rank, target.width), (target.stop - target.start, self.rank)
        if config.init_lora_weights == "gaussian":
            self.lora_A = normal(rng, first, 1 / self.rank)
        else:
            self.lora_A = uniform(rng, first, target.width)
        is_random = config.init_lora_weights is False
        self.lora_B = uniform(rng, second, self.rank) if is_random else _zeros(second)

    def __call__(self, x: Node) -> Node:
        x = F.dropout(x, self.dropout, self.training)
        return F.linear(self.scaled(F.linear(x, self.lora_A)), self.lora_B)

    def change(self) -> Array:
        return self.scale * (self.lora_B.numpy() @ self.lora_A.numpy())


class LoraOfTable(LoraMatrices):
    """s A Bᵀ for the rows that are read of a table, (T, D)."""

    in_files: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "lora_A": ("lora_embedding_A", True), "lora_B": ("lora_embedding_B", False),
    }  # fmt: skip

    def __init__(self, target: AdapterTarget, config: LoraConfig, rng: np.random.Generator) -> None:
        super().__init__(target, config, rng)
        first, second = (target.stop - target.start, self.rank), (target.width, self.rank)
        is_random = config.init_lora_weights is False
        self.lora_A = normal(rng, first) if is_random else _zeros(first)
        self.lora_B = normal(rng, second)

    def __call__(self, rows_of: Callable[[Parameter], Node]) -> Node:
        return F.linear(self.scaled(rows_of(self.lora_A)), self.lora_B)

    def change(self) -> Array:
        return self.scale * (self.lora_A.numpy() @ self.lora_B.numpy().T)


class Lora(Adapter):
    """The matrices of a layer: of its whole weight, or of parts of it, such as q, k and v.

    Args:
        parts: by name.
        total: rows of the weight.
    """

    def __init__(self, parts: Mapping[str, LoraMatrices], total: int, config: LoraConfig) -> None:
        self.parts = dict(parts)
        self.config = config
        self.total = total
        self._before: Array | None = None

    def __call__(self, read: Any, y: Node) -> Node:
        if self.is_merged:
            return y
        added = {(part.start, part.stop): part(read) for part in self.parts.values()}
        whole = added.get((0, self.total))
        if whole is not None:
            return y + whole
        pieces = [*pairwise(sorted({0, self.total, *chain.from_iterable(added)}))]
        if all([piece in added for piece in pieces]):
            return y + F.concat([added[piece] for piece in pieces])
        results = F.split(y, [stop - start for start, stop in pieces])
        return F.concat(
            [x + added[at] if at in added else x for at, x in zip(pieces, results, strict=True)]
        )

    def merge(self, weight: Parameter) -> None:
        """Add to the weight what the matrices add, and keep its values for `unmerge`."""
        self._before = weight.numpy()
        merged = self._before.copy()
        for part in self.parts.values():
            merged[part.start : part.stop] += part.change().astype(merged.dtype)
        weight.assign(merged)
        self.is_merged = True

    def unmerge(self, weight: Parameter) -> None:
        """Give the weight the values that it had, to the bit."""
        assert self._before is not None
        weight.assign(self._before)
        self._before, self.is_merged = None, False
        self.train(self.training)  # `train` and `eval` did not reach the matrices meanwhile
        for parameter in self.parameters():
            parameter.to(weight.device)
            if parameter.dtype != weight.dtype:
                parameter.replace(parameter.value.astype(weight.dtype))


def _zeros(shape: tuple[int, int]) -> Parameter:
    return made(shape, lambda: np.zeros(shape, np.float32))
