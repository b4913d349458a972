"""The kinds of models, their sizes, and whether a checkpoint's description fits its tensors.

A description is checked before a model is made of it, so that a damaged one allocates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dynbatch.arguments import is_count
from dynbatch.models import Seq2Seq, TransformerTranslation
from dynbatch.tasks.translation.pairs import UNITS
from dynbatch.tasks.words import is_share
from dynbatch.text.vocabulary import MARKS
from dynbatch.train.checkpoint_file import wrong_field

Model = Seq2Seq | TransformerTranslation

MODELS: dict[str, Callable[..., Model]] = {"lstm": Seq2Seq, "transformer": TransformerTranslation}

SIZES = {
    "lstm": ("embed", "hidden", "layers", "attention", "dropout", "label_smoothing"),
    "transformer": ("hidden", "layers", "heads", "dropout", "label_smoothing"),
}
"""The settings of a run that are arguments of its model."""


def wrong_description(
    description: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Describe what is wrong with a description out of JSON; None if a model can be made of it.

    Args:
        shapes: of the checkpoint's tensors, by name.
    """
    problem = wrong_field(description, DESCRIPTION)
    if problem:
        return problem
    kind, sizes = description["model"], description["sizes"]
    problem = wrong_field(sizes, dict.fromkeys(_COUNTS[kind], is_count))
    if problem:
        return problem
    layers = len([name for name in shapes if _LAYER[kind].fullmatch(name)])
    if sizes.get("layers", 1) != layers:
        return f"{sizes.get('layers', 1)!r} layers where {layers} were saved"
    for share in ("dropout", "label_smoothing"):
        if not is_share(sizes.get(share, 0.0)):
            return f"{sizes[share]!r} for {share!r}"
    for name, shape in _wanted_shapes(description).items():
        if shapes.get(name) != shape:
            return f"sizes of {shape} for {name!r}, saved as {shapes.get(name)}"
    return None


def _wanted_shapes(description: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    sizes = description["sizes"]
    source, target = [len(description[name]) + len(MARKS) for name in ("source", "target")]
    width = sizes["embed" if description["model"] == "lstm" else "hidden"]
    return {
        "model/source_embedding.weight": (source, width),
        "model/target_embedding.weight": (target, width),
        "model/output.weight": (target, sizes["hidden"]),
    }


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


DESCRIPTION: dict[str, Callable[[Any], bool]] = {
    "model": lambda value: isinstance(value, str) and value in MODELS,
    "sizes": lambda value: isinstance(value, dict),
    "source": _is_texts,
    "target": _is_texts,
    "source_units": lambda value: value in UNITS,
    "target_units": lambda value: value in UNITS,
    "max_length": lambda value: is_count(value) and value > 0,
}
_COUNTS = {"lstm": ("embed", "hidden"), "transformer": ("hidden", "heads")}
_LAYER = {
    "lstm": re.compile(r"model/decoder\.layers\.\d+\.bias"),
    "transformer": re.compile(r"model/transformer\.decoder\.layers\.\d+\.norm1\.weight"),
}
