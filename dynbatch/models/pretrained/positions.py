"""Rotary positions of a config.json as `F.rotary` takes them, and settings that are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dynbatch.arguments import number, refused
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.nodes.positions.rotary import scaling_of


def rotary_options(
    config: ModelConfig, theta: float, scaling: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The arguments of `F.rotary`, once they are known to be such.

    What a scaling leaves out is the configuration's, as in `transformers`: the length of the texts
    that a model was trained on.

    Raises:
        ArgumentError: a number is out of range, or the scaling unknown.
    """
    owner, longest = type(config).__name__, getattr(config, "max_position_embeddings", None)
    full = None if scaling is None else dict(scaling)
    if full is not None:
        if full.get("partial_rotary_factor") == 1:  # all features are turned
            del full["partial_rotary_factor"]
        kind = full.get("rope_type", full.get("type", "default"))
        if kind == "dynamic":
            full["max_position_embeddings"] = longest
        if kind in ("llama3", "yarn"):
            trained = config.others.get("original_max_position_embeddings")
            if trained is not None:
                full["original_max_position_embeddings"] = trained
            full.setdefault("original_max_position_embeddings", longest)
    scaling_of(full)
    return {"base": number(owner, "rope_theta", theta, "(0, inf)"), "scaling": full}


def rotary_options_of_type(
    config: ModelConfig, theta: float, scaling: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`rotary_options` for one type of layer, in a family whose types have scalings of their own.

    Raises:
        ArgumentError: as there; or yarn's bounds are not whole, where `transformers` rounds them.
    """
    # Its `modeling_rope_utils` (5.24, line 475) looks for "truncate" beside the parts by type, not
    # in them: a model that was trained with it has whole bounds whatever its config.json says.
    if scaling is not None and scaling.get("truncate") is False:
        raise refused(
            type(config).__name__, "truncate is False in the rotary scaling of a type of layer",
            "transformers does not read it there, and rounds yarn's bounds",
            "leave truncate out, to compute what transformers does",
        )  # fmt: skip
    return rotary_options(config, theta, scaling)


def rope_parts(owner: str, rope: Any, kinds: Collection[str]) -> dict[str, dict[str, Any]]:
    """The parts of "rope_parameters" for the types of layers that it has some for.

    Raises:
        ArgumentError: it is not made of such parts.
    """
    is_dict = isinstance(rope, dict) and rope.keys() <= set(kinds)
    if not is_dict or not all([part is None or isinstance(part, dict) for part in rope.values()]):
        raise refused(
            owner, f"rope_parameters is {rope!r:.60}",
            f"a dict for each of {', '.join(map(repr, kinds))}, or None",
            'give {"full_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, say',
        )  # fmt: skip
    return {kind: dict(part) for kind, part in rope.items() if part is not None}


def refuse_settings(config: ModelConfig, **values: tuple[Any, ...]) -> None:
    """Refuse settings of a config.json that would change what is computed, and are not here.

    Args:
        values: for each setting those with which nothing changes.

    Raises:
        ArgumentError: one has another value.
    """
    for name, without_effect in values.items():
        value = config.others.get(name, getattr(config, name, without_effect[0]))
        if value not in without_effect:
            raise refused(
                type(config).__name__, f"{name} is {value!r:.60}, which is not supported",
                f"{name} is {' or '.join(map(repr, without_effect))}",
                "choose a checkpoint without it",
            )  # fmt: skip
