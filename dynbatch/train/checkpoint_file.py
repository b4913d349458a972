"""The file of a checkpoint: metadata and tensors, checked by their digests.

The metadata is one key, `dynbatch-checkpoint`, with JSON in one form only (sorted, without spaces),
so that equal runs write equal bytes:

    {"digest": …, "state": {…}, "tensors": {"model/weight": …}, "version": 2}

`tensors` has a digest of each tensor's dtype, shape and bytes; `digest` is that of the JSON without
it. Version 1 had three keys, `format`, `version` and `state`, and no digests; it is still read.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch.arguments import is_count, is_integer
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError, DtypeError
from dynbatch.train.digest import array_digest, text_digest
from dynbatch.train.protocols import State
from dynbatch.train.run_folder import CHECKPOINT, best_of, other_copy

FORMAT = "dynbatch-checkpoint"
VERSION = 2

Rule = Callable[[object], bool]
"""Checks whether a JSON value has the right form."""

_NUMBERS = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
"""The dtypes that NumPy can read; safetensors has more."""


def metadata_of(state: Mapping[str, object], tensors: Mapping[str, Array]) -> dict[str, str]:
    """The metadata of a file with these tensors.

    Raises:
        DtypeError: the state holds something that JSON cannot.
    """
    content = {
        "state": json.loads(_json(state)),
        "tensors": {name: array_digest(array) for name, array in tensors.items()},
        "version": VERSION,
    }
    return {FORMAT: _canonical({**content, "digest": text_digest(_canonical(content))})}


def safetensors() -> Any:
    """The package that reads and writes checkpoints; nothing else needs it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        importlib.import_module("safetensors.numpy")
        return importlib.import_module("safetensors")
    except ImportError as error:
        raise ImportError(
            f"a checkpoint is a file of safetensors, which is not installed ({error}).\n"
            "  fix:  pip install safetensors; a model trains without it, until it is to be saved"
        ) from error


class CheckpointFile:
    """An open checkpoint, closed by `with`, whose metadata is whole and of the right types.

    Args:
        path: of the file.

    Attributes:
        state:  what was saved beside the tensors.
        shapes: of the tensors, by name.

    Raises:
        CheckpointError: the file is missing, cut short, damaged or no checkpoint of dynbatch.
        ImportError:     safetensors is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            fix = other_copy(path) if best_of(path).is_file() else "check the path."
            if path.is_dir():
                fix = f"give the file, such as {path / CHECKPOINT}."
            what = "a folder, not a file" if path.is_dir() else "there is no such file"
            raise CheckpointError(f"{path}: {what}.\n  fix: {fix}")
        library = safetensors()
        try:
            self._file = library.safe_open(str(path), framework="np")
            self._dtypes: dict[str, str] = {}
            self.shapes: dict[str, tuple[int, ...]] = {}
            for name in self._file.keys():
                part = self._file.get_slice(name)
                self._dtypes[name] = part.get_dtype()
                self.shapes[name] = tuple(part.get_shape())
            metadata = self._file.metadata() or {}
        except (OSError, library.SafetensorError) as error:
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({error}).\n"
                "  rule: a file is written whole; this one was cut short or damaged afterwards\n"
                f"  fix:  {other_copy(path)}"
            ) from error
        self._digests: dict[str, str] | None = None
        self.state = self._checked(self._content(metadata))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def read(self, prefix: str, kinds: str = "") -> dict[str, Array]:
        """Read the tensors whose names begin with `prefix`, and compare them with their digests.

        It takes about a second for a gigabyte. The prefix is cut off their names.

        Args:
            kinds: the letters of safetensors' dtypes that they may have; "" for all.

        Raises:
            CheckpointError: one is not what was written, or not a number.
        """
        return dict(self.each(prefix, kinds))

    def each(self, prefix: str, kinds: str = "") -> Iterator[tuple[str, Array]]:
        """The tensors of `read` with their names, one after the other."""
        for name in sorted(self.shapes_of(prefix)):
            yield name, self._tensor(prefix + name, kinds)

    def shapes_of(self, prefix: str) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors whose names begin with `prefix`, by the rest of the name."""
        return {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
            if name.startswith(prefix)
        }

    def _tensor(self, name: str, kinds: str) -> Array:
        dtype = self._dtypes[name]
        if dtype not in _NUMBERS or (kinds and dtype[0] not in kinds):
            raise self.damaged(f"tensor {name!r} is of dtype {dtype}")
        try:
            array: Array = self._file.get_tensor(name)
        except (OSError, safetensors().SafetensorError) as error:
            raise self.damaged(f"tensor {name!r} cannot be read ({error})") from error
        if self._digests is not None and array_digest(array) != self._digests[name]:
            raise self.damaged(f"tensor {name!r} is not what was written (by its digest)")
        return array

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: damaged: {what}; nothing was loaded.\n  fix: {other_copy(self.path)}"
        )

    def _content(self, metadata: Mapping[str, str]) -> object:
        """The state in either version's metadata; its fields are not checked yet."""
        if FORMAT in metadata:
            content, digest = self._parsed(metadata[FORMAT])
            self._require_version(content.get("version"), VERSION)
            if content.pop("digest", None) != digest:
                raise self.damaged("its metadata is not what was written (by its digest)")
            self._digests = content.get("tensors")
            if not isinstance(self._digests, dict) or self._digests.keys() != self.shapes.keys():
                raise self.damaged("its tensors are not those that were written")
            return content.get("state")
        if metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.path}: a safetensors file, but not a checkpoint of dynbatch "
                f"(format {metadata.get('format')!r}, expected {FORMAT!r}).\n"
                "  fix: give a file written by save_checkpoint."
            )
        self._require_version(metadata.get("version"), "1")
        return self._parsed(metadata.get("state", ""))[0]

    def _parsed(self, text: str) -> tuple[State, str]:
        """A JSON object, and the digest of all its fields but `digest`."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ValueError("no object")
            rest = {name: value for name, value in content.items() if name != "digest"}
            return content, text_digest(_canonical(rest))
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"its metadata is not JSON ({error})") from error

    def _require_version(self, version: object, known: object) -> None:
        if version != known:
            raise CheckpointError(
                f"{self.path}: format version {version!r}, this dynbatch reads 1 and {VERSION}.\n"
                "  fix: load it with the dynbatch that wrote it, or a newer one."
            )

    def _checked(self, state: object) -> State:
        if isinstance(state, dict):
            state = {"average": None, "frozen": {}, "settings": {}, **state}
        problem = wrong_field(state, _FIELDS)
        if problem:
            raise self.damaged(f"its metadata has {problem}")
        assert isinstance(state, dict)
        return state


def wrong_field(value: object, fields: Mapping[str, Rule]) -> str | None:
    """Describe what is wrong with an object out of JSON; None if it has the fields that it needs.

    Example:
        >>> wrong_field({"step": "3"}, {"step": is_count})
        "'3' for 'step'"
    """
    if not isinstance(value, dict):
        return f"{str(value)[:40]!r} for an object"
    for name, is_right in fields.items():
        if name not in value:
            return f"no {name!r}"
        if not is_right(value[name]):
            return f"{_begin(value[name])} for {name!r}"
    return None


def _begin(value: object) -> str:
    shown = value[:40] if isinstance(value, str | list) else value
    return "a large number" if isinstance(value, int) and abs(value) >> 200 else repr(shown)[:60]


def is_object(value: object) -> bool:
    return isinstance(value, dict)


def _or_none(is_right: Rule) -> Rule:
    return lambda value: value is None or is_right(value)


def _is_seed(value: object) -> bool:
    return is_integer(value) and value >= 0


def _is_graph_random(value: object) -> bool:
    wanted = {"seed": _is_seed, "count": is_count}
    return wrong_field(value, wanted) is None


def _is_average(value: object) -> bool:
    wanted: dict[str, Rule] = {
        "kind": lambda kind: isinstance(kind, str), "num_updates": is_count,
    }  # fmt: skip
    return wrong_field(value, wanted) is None


_FIELDS: dict[str, Rule] = {
    "step": is_count,
    "epoch": is_count,
    "position": is_count,
    "extra": is_object,
    "random_state": _or_none(is_object),
    "graph_random": _is_graph_random,
    "optimizer": _or_none(lambda value: isinstance(value, str)),
    "schedule": _or_none(lambda value: isinstance(value, str)),
    "schedule_state": _or_none(is_object),
    "average": _or_none(_is_average),  # missing where there was none
    "frozen": is_object,  # digests of what was left out; missing where nothing was
    "settings": is_object,  # numbers of the model's own; missing where there were none
}


def _json(state: Mapping[str, object]) -> str:
    def plain(value: object) -> object:
        if isinstance(value, (np.ndarray, np.generic)):
            return value.tolist()
        raise DtypeError(
            f"save_checkpoint: {type(value).__name__} cannot be kept in a checkpoint.\n"
            "  fix: put numbers, text, lists and dictionaries into `extra`."
        )

    return json.dumps(state, default=plain)


def _canonical(content: Mapping[str, object]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
