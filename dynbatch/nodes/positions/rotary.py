"""Rotary position embedding, which turns queries and keys by angles that grow with the position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dynbatch.arguments import number, refused, shown, size, switch
from dynbatch.kernels import positions as kernels
from dynbatch.kernels.frequencies import (
    MOST_POSITIONS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
)
from dynbatch.nodes.arguments import node_of
from dynbatch.nodes.batch import Batch
from dynbatch.nodes.node import Node, Shape
from dynbatch.nodes.positions.base import Positioned, position_attributes
from dynbatch.ragged import Ragged

SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "max_position_embeddings"),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}  # fmt: skip
"""The numbers of each type of scaling, under their names in Hugging Face's configurations."""

OF_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
"""Further numbers of YaRN, each of which may be absent or None."""


class Rotary(Positioned):
    """Pairs of features of each head turned by position · frequency.

    Batches with:  every other Rotary of its width, heads and angles, whatever lengths and offsets.
    Backward:  turns back. It reads nothing of forward.
    """

    __slots__ = ("heads",)
    static = ("heads", "layout", "angles", "has_positions")
    shape_rule = "x (T, heads · d)|(heads · d,) -> (T, heads · d)|(heads · d,)"
    shape_fix = "give the number of heads that this matrix has; keys may have fewer than queries"
    inplace_forward = True
    inplace_backward = True
    function = "rotary"
    heads: int

    def check_shape(self, *shapes: Shape) -> None:
        features, rotated = shapes[0][-1] // self.heads, self.angles.width
        if not 0 < rotated <= features or rotated % 2:
            self.refuse(
                f"{rotated} rotated features in heads of {features}",
                "rotary_dim is even, and at most the features of a head",
                "give another number of heads, or rotary_dim",
            )
        super().check_shape(*shapes)

    @classmethod
    def forward_batch(cls, batch: Batch, y: Ragged, *xs: Ragged) -> None:
        cls._turn(batch, xs[0], y, is_inverse=False)

    @classmethod
    def backward_batch(cls, batch: Batch, dy: Ragged, *dxs: Ragged | None) -> None:
        if dxs[0] is not None:
            cls._turn(batch, dy, dxs[0], is_inverse=True)

    @classmethod
    def _turn(cls, batch: Batch, x: Ragged, out: Ragged, is_inverse: bool) -> None:
        node, runs = batch.first, cls.runs(batch, x)
        is_interleaved = node.layout == "interleaved"
        kernels.rotary(
            x.values, *runs, node.angles, node.heads, is_interleaved, is_inverse, out.values
        )


def rotary(
    x: Node,
    heads: int = 1,
    base: float = 10000.0,
    *,
    layout: str = "halves",
    rotary_dim: int | None = None,
    scaling: Mapping[str, Any] | None = None,
    offset: int = 0,
    positions: Any = None,
) -> Node:
    """Rotary position embedding: queries or keys turned so that q · k depends on their distance.

    In each head the features (a, b) of pair i, at position p, become
    (a cos pf_i - b sin pf_i, b cos pf_i + a sin pf_i), with f_i = base^(-2i / rotary_dim).
    A token's position is `offset` + its place in the sentence, or the one that is given.

    Args:
        x:          (T, heads · d), or (heads · d,) for one token.
        heads:      of x; of keys in attention with grouped queries, the number of key heads.
        layout:     "halves" pairs feature i with i + rotary_dim / 2 (GPT-NeoX, Llama);
                    "interleaved" pairs 2i with 2i + 1 (the paper, GPT-J).
        rotary_dim: the first features of each head that are turned; by default all.
        scaling:    of the frequencies, as `rope_scaling` in a configuration of Hugging Face's:
                    {"rope_type": "linear", "factor": …}; "llama3" with factor, low_freq_factor,
                    high_freq_factor and original_max_position_embeddings; "yarn" with factor and
                    original_max_position_embeddings, and where they differ from YaRN's own
                    beta_fast, beta_slow, attention_factor or mscale and mscale_all_dim, truncate;
                    "dynamic" with factor and max_position_embeddings, for positions below that
                    alone. None or "default": none.
        offset:     the position of the first token: in generation, the length of what is cached.
        positions:  T integers, instead of an offset.

    Angles are computed in float64, where other libraries use float32: at position 500 these are
    off by up to 4e-5.

    Raises:
        ShapeError:      x is not (T, heads · d), rotary_dim is odd or above d, or there is not one
                         position for each token.
        VocabularyError: a position is below 0, 2^20 or more, or beyond those of "dynamic".
        ArgumentError:   the layout or scaling is unknown, or a number is out of range.

    Source: Su et al. 2021, arXiv:2104.09864; Llama 3's scaling: Grattafiori et al. 2024,
        arXiv:2407.21783; YaRN: Peng et al. 2023, arXiv:2309.00071, both as transformers'
        `modeling_rope_utils` has them.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph(dtype="float64") as graph:
        ...     x = F.input(graph, [[1.0, 0.0], [1.0, 0.0]])
        ...     F.rotary(x).value.round(2).tolist()
        [[1.0, 0.0], [0.54, 0.84]]
    """
    x = node_of("rotary", x)
    heads = size("rotary", "heads", heads)
    turned = x.width // heads if rotary_dim is None else size("rotary", "rotary_dim", rotary_dim, 2)
    base = number("rotary", "base", base, "(0, inf)")
    scaled = scaling_of(scaling)
    if isinstance(scaled, YarnScaling):  # it divides by the base's logarithm
        number("rotary", "base", base, "(1, inf)")
    angles = kernels.Angles(turned, base, scaled)
    placed = position_attributes("rotary", layout, offset, positions)
    return Rotary(x, heads=heads, angles=angles, **placed)


def scaling_of(scaling: Mapping[str, Any] | None) -> Scaling | None:
    """A scaling as `Angles` takes it.

    Raises:
        ArgumentError: its type is unknown, or its numbers are not those of the type.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, Mapping):
        raise refused(
            "rotary", f"scaling is {shown(scaling)}", "a scaling is a dict, or None",
            'give {"rope_type": "linear", "factor": 2.0}, say',
        )  # fmt: skip
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise refused(
            "rotary", f"scaling of type {kind!r}", "rope_type is one of " + ", ".join(SCALINGS),
            "this model needs a scaling that dynbatch does not have",
        )  # fmt: skip
    names, keys = SCALINGS[kind], scaling.keys() - {"rope_type", "type"}
    optional = OF_YARN if kind == "yarn" else ()
    if keys - set(optional) != set(names):
        also = f", and may have {', '.join(optional)}" if optional else ""
        raise refused(
            "rotary", f"scaling of type {kind!r} with {', '.join(sorted(keys)) or 'no numbers'}",
            f"it has {', '.join(names) or 'no numbers'}{also}",
            "give these and no others; rope_theta is the argument base",
        )  # fmt: skip
    numbers = [number("rotary", name, scaling[name], "(0, inf)") for name in names]
    if kind == "llama3" and numbers[1] >= numbers[2]:
        raise refused(
            "rotary", f"low_freq_factor is {numbers[1]:g}, high_freq_factor {numbers[2]:g}",
            "low_freq_factor < high_freq_factor", "exchange them",
        )  # fmt: skip
    if kind == "yarn":
        return _yarn(numbers[0], numbers[1], scaling)
    if kind == "dynamic":
        longest = size("rotary", names[1], scaling[names[1]])
        return DynamicScaling(numbers[0], min(longest, MOST_POSITIONS))
    if kind == "llama3":
        factor, low, high, length = numbers
        return Llama3Scaling(factor, low, high, length)
    return LinearScaling(numbers[0]) if numbers else None


def _yarn(factor: float, length: float, scaling: Mapping[str, Any]) -> YarnScaling:
    def of(name: str, default: float) -> float:
        value = scaling.get(name)
        return default if value is None else number("rotary", name, value, "(0, inf)")

    def of_mscale(name: str) -> float:
        return 0.1 * of(name, 1.0) * math.log(factor) + 1.0 if factor > 1 else 1.0

    both = ("mscale", "mscale_all_dim")
    has_both = all([scaling.get(name) for name in both])
    default = of_mscale(both[0]) / of_mscale(both[1]) if has_both else 1.0
    default = default if has_both or factor <= 1 else 0.1 * math.log(factor) + 1.0
    rounds = scaling.get("truncate")
    rounds = True if rounds is None else switch("rotary", "truncate", rounds)
    amplitude = of("attention_factor", default)
    return YarnScaling(
        factor, of("beta_fast", 32.0), of("beta_slow", 1.0), length, rounds, amplitude
    )
