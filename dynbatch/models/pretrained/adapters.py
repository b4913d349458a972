"""Adapters in PEFT's folders: adapter_config.json beside adapter_model.safetensors.

    base_model.model.NAME.lora_A.weight (r, I), ….lora_B.weight (O, r)       of a linear map
    base_model.model.NAME.lora_embedding_A (r, V), ….lora_embedding_B (D, r)  of a table
    base_model.model.NAME.weight                                              of `modules_to_save`

NAME is that of the layer in `transformers`.

Source: https://github.com/huggingface/peft, version 0.21, `utils/save_and_load.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynbatch.arguments import refused, state_differences
from dynbatch.atomic import replacing
from dynbatch.errors import CheckpointError
from dynbatch.models.initial import unfilled
from dynbatch.models.lora.adapting import (
    Prepared,
    adapters_of,
    attach,
    prepared,
    shared_parameters,
    trained_whole,
)
from dynbatch.models.lora.config import LoraConfig
from dynbatch.models.lora.matrices import Lora
from dynbatch.models.lora.targets import chosen_targets, own_parameters
from dynbatch.models.module import Module
from dynbatch.models.pretrained.family import Family
from dynbatch.models.pretrained.folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    caused,
    damaged,
    fault,
    file_of,
    read_json,
    shorten,
)
from dynbatch.models.pretrained.table import Shape, Stored, find
from dynbatch.models.pretrained.tensors import FLOATS, Mapped, Tensor, tensors_of
from dynbatch.models.pretrained.writing import Part, write_json, write_tensors
from dynbatch.parameter import Parameter

ABOVE = "base_model.model."
"""With which names begin in an adapter's file."""

_MOST_MATRICES = 1 << 30  # the layers of the model bound their number

TIED = "ensure_weight_tying"
"""PEFT's field: a change of one layer's table holds for all layers that share it."""

FIELDS = tuple([one.name for one in fields(LoraConfig)])
# Of PEFT's further fields those that change nothing here, whatever they hold.
OTHERS = frozenset((
    TIED, "auto_mapping", "fan_in_fan_out", "inference_mode", "layers_pattern",
    "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision",
))  # fmt: skip


class Entry(NamedTuple):
    """A tensor of an adapter: rows of a parameter, in the form of the file."""

    parameter: Parameter
    stored: Stored
    number: int = 0

    @property
    def shape(self) -> Shape:
        return self.stored.shapes(self.parameter.shape)[self.number]


def save_adapter(model: Module, folder: str | Path) -> None:
    """Write a model's adapter as a folder that PEFT and `load_adapter` read.

    It is made of adapter_config.json and adapter_model.safetensors, in float32, and has no value of
    the model that was adapted. Names are those of the layers in `transformers` where the model is
    one of `models.pretrained`, else paths in the model.

    Args:
        folder: made if it is not there.

    Raises:
        ArgumentError:   the model has no adapter.
        CheckpointError: the folder cannot be written.
    """
    folder, adapters = Path(folder), adapters_of(model)
    if not adapters:
        raise refused(
            "save_adapter", f"this {type(model).__name__} has no adapter",
            "an adapter is added first, and written after training",
            "models.add_adapter(model, models.LoraConfig(...)); model.save_pretrained(folder) "
            "writes a whole model",
        )  # fmt: skip
    names = [part.name for adapter in adapters for part in adapter.parts.values()]
    config = adapters[0].config
    trained = trained_whole(model, config, names)
    lost = [n for n, p, _ in own_parameters(model) if not p.frozen and n not in trained]
    if lost:
        raise refused(
            "save_adapter", f"{', '.join(lost[:12])} are trained, and not a part of the adapter",
            "an adapter has its matrices, and layers that its configuration names",
            "name them in LoraConfig(modules_to_save=...), or models.freeze them; "
            "train.save_checkpoint(path, model, save_frozen=False) writes all that is trained",
        )  # fmt: skip
    entries = _entries(model, adapters, trained)
    parts = [Part(name, *entry) for name, entry in sorted(entries.items())]
    try:
        with ExitStack() as together:
            path = together.enter_context(replacing(folder / ADAPTER_CONFIG))
            write_json(path, config_json(model, config, names))
            path = together.enter_context(replacing(folder / ADAPTER_WEIGHTS))
            write_tensors(path, parts, "float32")
    except OSError as error:
        raise CheckpointError.at_caller(
            f"{folder}: the adapter was not written ({error}).\n"
            "  fix:  make room on the disk, or choose a folder that can be written"
        ) from error


def load_adapter(model: Module, folder: str | Path) -> list[str]:
    """Give a model the adapter of a folder that PEFT or `save_adapter` wrote.

    The model is the one that was adapted, as `load_pretrained` reads it. It is frozen but for the
    adapter, as after `models.add_adapter`, and trained further or merged as after that. All is
    checked before the model is changed.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.

    Returns:
        The names of the adapted layers.

    Raises:
        CheckpointError: a file is absent or damaged; or the adapter is of another model, or of a
            kind that is not supported: what it needs is named. The model is as it was.
    """
    folder, kind = Path(folder), type(model).__name__
    path, weights = file_of(folder, ADAPTER_CONFIG), file_of(folder, ADAPTER_WEIGHTS)
    content = read_json(path)
    with unfilled(_MOST_MATRICES):  # ranks are believed once the tensors have them
        wanted = _wanted(model, _prepared(model, path, content))
    tensors = _tensors(weights, model, wanted)
    _require_fitting(folder, kind, wanted, tensors)
    made = _prepared(model, path, content)
    wanted = _wanted(model, made)
    mapped, values = Mapped(weights), {}
    for name, entry in wanted.items():
        values[name] = np.empty(entry.shape, np.float32)
        mapped.read(tensors[name], values[name])
    for name, entry in wanted.items():
        array = entry.parameter.numpy()
        value, shift = values[name], np.float32(entry.stored.shift)
        entry.stored.parts(array)[entry.number][...] = value + shift if shift else value
        entry.parameter.assign(array)
    attach(model, made)
    return [part.name for _, adapter in made.adapters for part in adapter.parts.values()]


def adapter_json(model: Module) -> dict[str, Any] | None:
    """The object of adapter_config.json for a model's adapter; None if it has none, or merged."""
    adapters = [adapter for adapter in adapters_of(model) if not adapter.is_merged]
    names = [part.name for adapter in adapters for part in adapter.parts.values()]
    return config_json(model, adapters[0].config, names) if adapters else None


def _wanted(model: Module, made: Prepared) -> dict[str, Entry]:
    return _entries(model, [adapter for _, adapter in made.adapters], made.trained)


def _prepared(model: Module, path: Path, content: Mapping[str, Any]) -> Prepared:
    config, kind = _config(path, content), type(model).__name__
    try:
        made = prepared(model, config, chosen_targets(model, config, is_strict=False))
    except (ValueError, ArithmeticError) as error:  # or no memory could hold a matrix
        raise caused(path, f"adapter of this {kind}", error, "load it into its model") from error
    shared, is_tied = shared_parameters(model), content.get(TIED)
    if is_tied:
        weights = [getattr(layer, layer.adapted_weight) for layer, _ in made.adapters]
    else:
        weights = [*made.trained.values()]
    if names := [weight.name for weight in weights if weight.uid in shared]:
        what = "adapts it for all of them" if is_tied else "trains it for one of them alone"
        raise fault(
            path, f"layers of this {kind} share {', '.join(names)}, and the adapter {what}",
            "merge it in PEFT, model.merge_and_unload(), and save the model"
            + ("" if is_tied else " with tie_word_embeddings=False"),
        )  # fmt: skip
    return made


def config_json(model: Module, config: LoraConfig, names: Sequence[str]) -> dict[str, Any]:
    """The object of adapter_config.json.

    Args:
        names: of the adapted layers.
    """
    content = {name: getattr(config, name) for name in FIELDS}
    for name, value in content.items():
        if isinstance(value, Collection) and not isinstance(value, str):
            content[name] = dict(value) if isinstance(value, Mapping) else sorted(value)
    if config.target_modules is None or isinstance(config.target_modules, str):
        content["target_modules"] = sorted(names)
    trained, shared = trained_whole(model, config, names), shared_parameters(model)
    content[TIED] = any([parameter.uid in shared for parameter in trained.values()])
    return {
        "peft_type": "LORA", "auto_mapping": None, "inference_mode": True, "revision": None,
        "fan_in_fan_out": False, **content, "modules_to_save": [*config.saves()] or None,
    }  # fmt: skip


def add_saved_adapter(model: Module, path: Path, content: Mapping[str, Any]) -> None:
    """Give a model the adapter that adapter_config.json's object tells, without its values.

    Raises:
        CheckpointError: it is not one, or of another model; the path is for that.
    """
    with unfilled(_MOST_MATRICES):
        made = _prepared(model, path, content)
    attach(model, made)


def _config(path: Path, content: Mapping[str, Any]) -> LoraConfig:
    """The configuration in adapter_config.json.

    Raises:
        CheckpointError: it is not one, or asks for what is not here.
    """
    if content.get("peft_type") != "LORA":
        raise fault(
            path, f"its peft_type is {shorten(content.get('peft_type'))}", "LoRA alone is read: "
            "'LORA'; merge others in PEFT, model.merge_and_unload(), and save the model",
        )  # fmt: skip
    further = [n for n, value in content.items() if n not in (*FIELDS, *OTHERS) and value]
    if further:
        raise fault(
            path, f"it asks for {', '.join([f'{n}={shorten(content[n])}' for n in further[:12]])}, "
            "which is not supported",
            "merge it in PEFT, model.merge_and_unload(), and save the model",
        )  # fmt: skip
    settings = {name: content[name] for name in FIELDS if name in content}
    for name in ("rank_pattern", "alpha_pattern"):
        if settings.get(name, {}) is None:
            del settings[name]
    try:
        return LoraConfig(**settings)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise caused(path, "LoraConfig", error, "take another copy") from error


def _entries(
    model: Module, adapters: Sequence[Lora], trained: Mapping[str, Parameter]
) -> dict[str, Entry]:
    """The tensors of an adapter by their names in its file."""
    entries: dict[str, Entry] = {}
    parts = [part for adapter in adapters for part in adapter.parts.values()]
    for part in parts:
        for attribute, (name, is_transposed) in part.in_files.items():
            stored = Stored((name,), transposed=is_transposed)
            entries[f"{ABOVE}{part.name}.{name}"] = Entry(getattr(part, attribute), stored)
    adapted = {part.name for part in parts}
    for name, parameter, tensors in own_parameters(model):
        if name not in trained:
            continue
        names, rows = zip(*tensors, strict=True)
        stored = find(model.table(), name) if isinstance(model, Family) else Stored(names, rows)
        for number, tensor in enumerate(names):
            layer, _, last = tensor.rpartition(".")
            inner = f"{layer}.base_layer.{last}" if layer in adapted else tensor
            entries[ABOVE + inner] = Entry(parameter, stored, number)
    return entries


def _tensors(path: Path, model: Module, wanted: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a file by the names that are wanted, or by their own.

    Those that PEFT writes beside an adapter's are left out: values of tables from before.
    """
    prefix = getattr(type(model), "prefix", "")

    def plain(name: str) -> str:
        return name.removeprefix(ABOVE).removeprefix(prefix).replace(".base_layer.", ".")

    names = {plain(name): name for name in wanted}
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_of(path):
        is_other = name.endswith(".base_layer.weight") or is_beside(name)
        if not is_other or name in wanted:
            meant = names.get(plain(name), name)
            if meant in tensors:
                raise damaged(path, f"{shorten(name)} is there twice")
            tensors[meant] = tensor
    return tensors


def is_beside(name: str) -> bool:
    """Whether a tensor is one that PEFT may write twice where biases are trained."""
    return ".modules_to_save." in name or ".original_module." in name


def _require_fitting(
    folder: Path, kind: str, wanted: Mapping[str, Entry], tensors: Mapping[str, Tensor]
) -> None:
    """Check that a file has each tensor that is wanted, and no other.

    Raises:
        CheckpointError: it has not; all differences are named.
    """
    shapes = {name: entry.shape for name, entry in wanted.items()}
    saved = {name: tensor.shape for name, tensor in tensors.items()}
    differences = state_differences(shapes, saved, "adapter")
    unread = [shorten(name) for name, one in tensors.items() if one.dtype not in FLOATS]
    if unread and not differences:
        differences = f"  not of floats: {', '.join(unread[:12])}"
    if differences:
        raise CheckpointError.at_caller(
            f"{folder}: its adapter does not fit this {kind}; nothing was loaded.\n{differences}\n"
            "  fix:  load it into the model that it was trained on"
        )
