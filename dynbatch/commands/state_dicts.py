"""PyTorch's state dicts: read as tensors alone, with `weights_only=True`, and written."""

from __future__ import annotations

import importlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynbatch.atomic import replacing
from dynbatch.errors import CheckpointError, DataError
from dynbatch.models.pretrained.folder import damaged, file_of, read_index, shorten
from dynbatch.train.checkpoint import MODEL
from dynbatch.train.checkpoint_file import FORMAT, CheckpointFile, safetensors

SUFFIXES = (".pt", ".pth", ".bin")
"""Files that `torch.save` wrote."""

Tensors = dict[str, Any]
"""Tensors of PyTorch by their names."""


def is_pytorch(path: Path) -> bool:
    """Whether a file is PyTorch's by its name: a state dict, or the index of several."""
    name = path.name.removesuffix(".index.json")
    return name.endswith(SUFFIXES) and not path.is_dir()


def torch_for(path: Path) -> Any:
    """PyTorch, which reads and writes the file.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"{path}: PyTorch's own format, and PyTorch is not installed.\n"
            "  fix:  pip install torch, or 'dynbatch[torch]'"
        ) from error


def is_checkpoint(path: Path) -> bool:
    """Whether a safetensors file is a checkpoint of dynbatch, not tensors alone.

    Raises:
        CheckpointError: it is not a whole safetensors file.
    """
    library = safetensors()
    try:
        with library.safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
    except (OSError, library.SafetensorError) as error:
        raise damaged(path, f"not a whole safetensors file ({shorten(str(error))})") from error
    return FORMAT in metadata or metadata.get("format") == FORMAT


def read(path: Path, key: str | None) -> tuple[Tensors, list[str]]:
    """The tensors of a file, and what else stands in it. Nothing of it is executed.

    Args:
        path: of a state dict, or the index of several; or of safetensors, a checkpoint's model.
        key:  of the state dict inside of a larger dict.

    Raises:
        CheckpointError: it holds no tensors, or more than these, or is damaged.
        DataError:       several entries are state dicts, and none is chosen.
    """
    if path.name.endswith(".index.json"):
        return _read_index(path), []
    if path.suffix != ".safetensors":
        return _state_dict(path, _load(path), key)
    torch = torch_for(path)
    if is_checkpoint(path):
        with CheckpointFile(path) as file:
            values = file.read(MODEL, kinds="F")
            others = sorted([name for name in file.shapes if not name.startswith(MODEL)])
        return {name: torch.from_numpy(value) for name, value in values.items()}, others
    with safetensors().safe_open(str(path), framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}, []


def write(tensors: Tensors, path: Path) -> None:
    """Write tensors under their names; the file is replaced whole or not at all.

    Raises:
        CheckpointError: it cannot be written, or a tensor is not a plain array of numbers.
    """
    torch = torch_for(path)
    plain = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(
                f"{name}: sparse or quantised, which safetensors cannot hold; nothing was written."
                "\n  fix:  save it as a dense tensor, with tensor.to_dense() or dequantize()"
            )
        plain[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    try:
        with replacing(path) as temporary:
            if path.suffix == ".safetensors":
                save_file = importlib.import_module("safetensors.torch").save_file
                save_file(plain, str(temporary), {"format": "pt"})
            else:
                torch.save(plain, temporary)
    except (OSError, safetensors().SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: it could not be written ({error}); what was there is unchanged.\n"
            "  fix:  make room on the disk, or choose a folder that can be written"
        ) from error


def _load(path: Path) -> object:
    """A file of `torch.save`, if it is made of tensors, numbers, text, lists and dicts alone."""
    torch = torch_for(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of the pickle's age
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: not a file of tensors alone: it holds what only code could read, or is "
            "damaged; nothing was executed or loaded.\n"
            "  fix:  where it was made, torch.save(model.state_dict(), path)"
        ) from error
    except Exception as error:  # whatever a damaged file makes of PyTorch's reader
        raise damaged(path, f"not what torch.save writes ({shorten(str(error))})") from error


def _state_dict(path: Path, content: object, key: str | None) -> tuple[Tensors, list[str]]:
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path}: it holds a {type(content).__name__}; nothing was written.\n"
            "  rule: a dict of tensors by name, or a dict with one such\n"
            "  fix:  torch.save(model.state_dict(), path)"
        )
    if key is not None or not _tensors(path, content):
        inside = {str(name): value for name, value in content.items() if _tensors(path, value)}
        if key is None and len(inside) == 1:
            (key,) = inside
        if key is None or key not in inside:
            raise DataError(
                f"{path}: it has {len(inside)} state dicts: {', '.join(inside) or 'none'}; "
                f"nothing was written.\n  fix:  --key {next(iter(inside), 'NAME')}"
            )
        others = [str(name) for name in content if name != key]
        tensors, more = _state_dict(path, inside[key], None)
        return tensors, [*others, *[f"{key}.{name}" for name in more]]
    arrays = _tensors(path, content)
    return arrays, [str(name) for name in content if str(name) not in arrays]


def _tensors(path: Path, content: object) -> Tensors:
    if not isinstance(content, Mapping):
        return {}
    kind = torch_for(path).Tensor
    return {str(name): value for name, value in content.items() if isinstance(value, kind)}


def _read_index(path: Path) -> Tensors:
    """The tensors of all files that an index names, which lie beside it."""
    files = read_index(path, (*SUFFIXES, ".safetensors"))
    merged: Tensors = {}
    for name in sorted(set(files.values())):
        tensors, _ = read(file_of(path.parent, name), None)
        wanted = {one for one, file in files.items() if file == name}
        if wanted != tensors.keys():
            raise damaged(path, f"{shorten(name)} has other tensors than it says")
        merged |= tensors
    return merged


def shapes_of(tensors: Tensors) -> dict[str, tuple[tuple[int, ...], str]]:
    return {
        name: (tuple(one.shape), str(one.dtype).removeprefix("torch."))
        for name, one in tensors.items()
    }
