"""Writes a model as a checkpoint's folder: config.json and safetensors, whole or sharded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynbatch.arguments import refused
from dynbatch.atomic import replacing
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves, widened
from dynbatch.memory.sizes import parse_bytes
from dynbatch.models.adapter import Adapter
from dynbatch.models.pretrained.family import Family
from dynbatch.models.pretrained.folder import CONFIG, INDEX, WEIGHTS
from dynbatch.models.pretrained.table import Stored, find, matches
from dynbatch.parameter import Parameter

DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
_WEIGHTS = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors(\.index\.json)?")
_BLOCK = 1 << 20  # elements that are converted at a time


class Part(NamedTuple):
    """One tensor to write: the rows of a parameter that `stored.names[number]` has."""

    name: str
    parameter: Parameter
    stored: Stored
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shapes(self.parameter.shape)[self.number]

    def bytes_of(self, dtype: str) -> int:
        """Bytes that it takes in a file."""
        return int(np.prod(self.shape)) * DTYPES[dtype][1]

    def blocks(self, dtype: str) -> Iterator[bytes]:
        """The bytes of the tensor, some at a time."""
        value = self.parameter.value if self.parameter.is_short else self.parameter.numpy()
        part = self.stored.parts(value)[self.number]
        flat = np.ascontiguousarray(part).reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            if self.stored.shift:
                block = block - np.float32(self.stored.shift)
            yield _converted(block, dtype).tobytes()


def write_folder(model: Family, folder: Path, dtype: str, max_shard_size: int | str | None) -> None:
    """`PretrainedModel.save_pretrained`."""
    if dtype not in DTYPES:
        raise refused(
            "save_pretrained", f"dtype is {dtype!r}", f"one of {', '.join(DTYPES)}",
            "choose one of these",
        )  # fmt: skip
    require_plain(model)
    table, parts = model.table(), []
    for name, parameter in model.named_parameters():
        stored = find(table, name)
        parts += [Part(one, parameter, stored, k) for k, one in enumerate(stored.names)]
    named = {part.name: part for part in parts}
    parts += [
        named[name]._replace(name=spare)
        for spare, name in model.tied().items()
        if matches(model.spare, spare)
    ]
    parts.sort(key=lambda part: part.name)
    most = None if max_shard_size is None else parse_bytes("max_shard_size", max_shard_size)
    shards = _shards(parts, dtype, most)
    names = [WEIGHTS]
    if len(shards) > 1:
        count = len(shards)
        names = [f"model-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)]
    config = config_json(model, dtype)
    try:
        with ExitStack() as together:  # which gives the names from the last to the first
            write_json(together.enter_context(replacing(folder / CONFIG)), config)
            if len(shards) > 1:
                index = {
                    "metadata": {"total_size": sum([part.bytes_of(dtype) for part in parts])},
                    "weight_map": {
                        part.name: name
                        for name, shard in zip(names, shards, strict=True)
                        for part in shard
                    },
                }
                write_json(together.enter_context(replacing(folder / INDEX)), index)
            for name, shard in zip(names, shards, strict=True):
                write_tensors(together.enter_context(replacing(folder / name)), shard, dtype)
        for old in folder.iterdir():
            is_index = old.name == INDEX and len(shards) > 1
            if _WEIGHTS.fullmatch(old.name) and old.name not in names and not is_index:
                old.unlink()
    except OSError as error:
        raise CheckpointError.at_caller(
            f"{folder}: the model was not written ({error}).\n"
            "  fix:  make room on the disk, or choose a folder that can be written"
        ) from error


def require_plain(model: Family) -> None:
    """Raise an error if a model has an adapter that is not merged."""
    if any([isinstance(each, Adapter) and not each.is_merged for each in model.modules()]):
        raise refused(
            "save_pretrained", f"this {type(model).__name__} has an adapter",
            "the folder of a model has its weights alone",
            "models.merge_adapter(model) first; or models.pretrained.save_adapter(model, folder), "
            "for what was trained",
        )  # fmt: skip


def config_json(model: Family, dtype: str = "float32") -> dict[str, Any]:
    """The object of config.json for a model whose values are written in that dtype."""
    settings = model.config.to_json()
    settings.pop("dtype", None)  # newer than torch_dtype, for which it stands
    return {**settings, "architectures": [model.architecture], "torch_dtype": dtype}


def _shards(parts: Sequence[Part], dtype: str, most: int | None) -> list[list[Part]]:
    """The parts in files of at most `most` bytes, where none alone is larger."""
    shards: list[list[Part]] = [[]]
    room = most
    for part in parts:
        size = part.bytes_of(dtype)
        if room is not None and most is not None:
            if size > room and shards[-1]:
                shards.append([])
                room = most
            room -= size
        shards[-1].append(part)
    return shards


def write_tensors(path: Path, parts: Sequence[Part], dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers wants to be told
    start = 0
    for part in parts:
        stop = start + part.bytes_of(dtype)
        header[part.name] = {
            "dtype": DTYPES[dtype][0],
            "shape": list(part.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            for block in part.blocks(dtype):
                file.write(block)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _converted(values: Array, dtype: str) -> Array:
    """float32 values, or upper halves of some, in the dtype of a file; bfloat16 as upper halves."""
    if dtype == SHORT and values.dtype == np.uint16:
        return values.astype("<u2", copy=False)
    values = widened(values).astype("<f4", copy=False)
    if dtype != SHORT:
        with np.errstate(over="ignore"):
            return values.astype(f"<f{DTYPES[dtype][1]}", copy=False)
    return upper_halves(round_to(values, SHORT)).astype("<u2", copy=False)
