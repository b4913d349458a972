"""`ModelConfig`: the sizes and choices in a checkpoint's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_type_hints

from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models.pretrained.folder import caused, damaged, fault, read_json, shorten


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of configurations: frozen dataclasses whose fields bear the names of config.json.

    A field without a default must be there. Types are those of JSON: int, float, str, bool, list,
    dict, also with None. Checks that need several fields belong into `__post_init__`, which raises
    an `ArgumentError`.

    Args:
        others: what config.json holds besides; written back as it was.

    Class attributes:
        model_types: values of "model_type" that the class can read; the first is written by
                     default.
        names:       those that fields have in config.json, where they bear others here.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class TinyConfig(ModelConfig):
        ...     model_types = ("tiny",)
        ...     vocab_size: int
        ...     layer_norm_eps: float = 1e-12
        >>> TinyConfig(vocab_size=30).to_json()
        {'model_type': 'tiny', 'vocab_size': 30, 'layer_norm_eps': 1e-12}
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[Mapping[str, str]] = MappingProxyType({})

    others: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path, changes: Mapping[str, Any]) -> Self:
        """The configuration in a file, with some fields changed.

        Raises:
            CheckpointError: the file is damaged, of another model type, or lacks a field.
            ArgumentError:   a change is not a field.
        """
        return cls.checked(path, read_json(path), changes)

    @classmethod
    def checked(
        cls, path: Path, saved: Mapping[str, Any], changes: Mapping[str, Any] = MappingProxyType({})
    ) -> Self:
        """The configuration in an object out of JSON, as `read`; the path is for errors."""
        kind = saved.get("model_type")
        if kind not in cls.model_types:
            raise fault(
                path, f"its model_type is {shorten(kind)}",
                f"{cls.__name__} reads {' and '.join(map(repr, cls.model_types))}; choose the "
                "class by the model_type",
            )  # fmt: skip
        ours = {of_file: name for name, of_file in cls.names.items()}
        saved = {ours.get(name, name): value for name, value in saved.items()}
        types = get_type_hints(cls)
        names = [one.name for one in fields(cls) if one.name != "others"]
        if unknown := sorted(changes.keys() - set(names)):
            is_labels = "id2label" in names and any(["label" in name for name in unknown])
            fix = "id2label=dict(enumerate(labels))" if is_labels else "one of these"
            raise ArgumentError.at_caller(
                f"{cls.__name__}: {', '.join(unknown)} cannot be changed.\n"
                f"  rule: its fields are {', '.join(names)}\n  fix:  give {fix}"
            )
        chosen = {name: saved[name] for name in names if name in saved}
        for name, value in chosen.items():
            if not _is_of(value, types[name]):
                wanted = getattr(types[name], "__name__", str(types[name]))
                raise damaged(path, f"{name!r} is {shorten(value)}, not of type {wanted}")
        needed = {one.name for one in fields(cls) if one.name in names and one.default is MISSING}
        if missing := sorted(needed - chosen.keys() - changes.keys()):
            raise damaged(path, f"it lacks {', '.join(missing)}")
        others = {name: value for name, value in saved.items() if name not in names}
        try:
            return cls(**{**chosen, **changes, "others": others})
        except (ValueError, ArithmeticError) as error:
            if changes and isinstance(error, ArgumentError):
                raise
            raise unusable(cls, path, error) from error

    @property
    def is_tied_by_file(self) -> bool:
        """Whether the files decide on tie_word_embeddings, not what config.json says of it."""
        return False

    def to_json(self) -> dict[str, Any]:
        """The object for config.json."""
        settings = {
            self.names.get(one.name, one.name): getattr(self, one.name)
            for one in fields(self)
            if one.name != "others"
        }
        return {"model_type": self.model_types[0], **self.others, **settings}


def unusable(kind: type, path: Path, error: Exception) -> CheckpointError:
    """The error where a class refuses what config.json says."""
    fix = "compare it with the config.json of a model that loads"
    return caused(path, kind.__name__, error, fix)


def _is_of(value: object, kind: Any) -> bool:
    """Whether a JSON value is of a field's type; floats are finite, and integers count as such."""
    members = getattr(kind, "__args__", None)
    if members and not hasattr(kind, "__origin__"):  # a union
        return any([_is_of(value, each) for each in members])
    kind = getattr(kind, "__origin__", kind)
    if isinstance(value, bool):
        return kind in (bool, Any)
    if kind is float:
        return isinstance(value, int | float) and abs(value) < 1 << 1000 and math.isfinite(value)
    return kind is Any or isinstance(value, kind)
