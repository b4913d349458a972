"""`PretrainedModel`: from a checkpoint's folder into a model, and out again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch.arguments import refused
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.kernels.runtime.precision import FULL, SHORT
from dynbatch.models.initial import Draws, unfilled
from dynbatch.models.pretrained.adapters import adapter_json
from dynbatch.models.pretrained.config import ModelConfig, unusable
from dynbatch.models.pretrained.family import Family
from dynbatch.models.pretrained.folder import CONFIG, file_of, shorten, weight_files
from dynbatch.models.pretrained.match import Match, fresh_names
from dynbatch.models.pretrained.tensors import Mapped, tensors_of
from dynbatch.models.pretrained.writing import config_json, write_folder
from dynbatch.parameter import Parameter


class PretrainedModel(Family):
    """A model that is read from a checkpoint's folder and written to one.

    A family is a class of its own, with what `Family` declares.
    """

    KEY = "pretrained"
    """A checkpoint's entry of `extra` with the model's config.json; see `load_pretrained`."""
    ADAPTER_KEY = "adapter"
    """The entry with adapter_config.json, if the model has an adapter."""

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, dtype: Any = FULL, new: Sequence[str] = (), **changes: Any
    ) -> Self:
        """The model of a folder: config.json with model.safetensors, or sharded with an index.

        It is in evaluation mode, as in `transformers`: `model.train()` turns dropout on. Nothing is
        executed. Besides the model itself little memory is used: a file is memory-mapped, and its
        shapes are compared with the model's before anything is allocated.

        Args:
            folder:  of the checkpoint.
            dtype:   of its values, whatever the file's (float32, float16, bfloat16 or float64):
                     "float32"; or "bfloat16" for matrices of weights in 16 bits, to be read and not
                     trained (see `Parameter.is_short`). They stay in the file where it has them so,
                     one by one; other values are rounded to the nearest. The file may then be
                     replaced or removed, and not be written to, as long as the model lives.
            new:     parameters that begin at random, as in a model made from its configuration,
                     such as ["classifier.{}"]: with `*` for a number, `{}` for weight or bias, and
                     `**` at the end for any rest. What the folder has for them is not read.
            changes: fields of the configuration in place of those in config.json.

        Raises:
            CheckpointError: a file is absent, damaged, or a pickle; or tensors are missing,
                unexpected or of other shapes than the configuration says: all are named.
            ArgumentError: a change is not a field of the configuration, or `new` names what is not
                a parameter; or another dtype.
        """
        precision = precision_of(cls.__name__, dtype)
        folder = Path(folder)
        path = file_of(folder, CONFIG)
        config = cls.config_type.read(path, changes)
        files, index = weight_files(folder)
        count = sum([1 for file in files for _ in tensors_of(file)])
        model, draws = cls._without_values(config, path, count, changes)
        fresh = fresh_names(model, new)
        match = Match(model, files, index, fresh)
        if match.untied and config.is_tied_by_file and "tie_word_embeddings" not in changes:
            untied: dict[str, Any] = {"tie_word_embeddings": False}
            config = replace(config, **untied)
            model, draws = cls._without_values(config, path, count, changes)
            match = Match(model, files, index, fresh)
        match.require_all(folder)
        mapped = {file: Mapped(file) for file in files}
        for name, parameter in model.named_parameters():
            is_short = lies_short(name, parameter, precision)
            if name in fresh:
                parameter.replace(draws[parameter.uid]())
                if is_short:
                    parameter.shorten()
                continue
            array = match.view(name, mapped) if is_short else None
            if array is None:
                array = np.empty(parameter.shape, np.uint16 if is_short else np.float32)
                for tensor, part in match.parts(name, array):
                    mapped[tensor.path].read(tensor, part)
            if shift := match.shift(name):
                array += np.float32(shift)
            parameter.replace(array)
        return model.eval()

    @classmethod
    def with_shapes(cls, config: ModelConfig, path: Path, count: int) -> Self:
        """A model whose parameters have shapes and no memory: `Parameter.replace` gives them some.

        Args:
            path:  of the configuration, for errors.
            count: tensors in the file, which bounds the number of parameters.

        Raises:
            CheckpointError: the configuration asks for more, or for what is not here.
        """
        return cls._without_values(config, path, count, {})[0]

    @classmethod
    def _without_values(
        cls, config: ModelConfig, path: Path, count: int, changes: Mapping[str, Any]
    ) -> tuple[Self, Draws]:
        """A model whose parameters have shapes only, and what would draw their values."""
        try:
            with unfilled(2 * count + 64) as draws:
                return cls(config), draws
        except (ValueError, ArithmeticError) as error:
            if changes and isinstance(error, ArgumentError):
                raise
            raise unusable(cls, path, error) from error

    def checkpoint_extra(self) -> dict[str, Any]:
        """Entries of `extra` in `save_checkpoint`, from which `load_pretrained` makes the model."""
        adapter = adapter_json(self)
        return {
            self.KEY: config_json(self),
            **({} if adapter is None else {self.ADAPTER_KEY: adapter}),
        }

    def require_config(self, source: object, extra: Mapping[str, Any]) -> None:
        """Check that the configuration is that of a checkpoint which has trained values alone: but
        for dropout, by which nothing frozen was trained.

        Args:
            source: what the error begins with.
            extra:  of the checkpoint.

        Raises:
            CheckpointError: it is another one.
        """
        saved, ours = extra.get(self.KEY) or {}, json.loads(json.dumps(self.config.to_json()))
        names = [self.config.names.get(one.name, one.name) for one in fields(self.config)]
        others = [
            f"{name} {shorten(ours[name])}, saved {shorten(saved[name])}"
            for name in names
            if "drop" not in name and name in saved and saved[name] != ours[name]
        ]
        if others:
            raise CheckpointError.at_caller(
                f"{source}: has trained parameters alone, and the others' {CONFIG} is not that of "
                f"its run; nothing was loaded.\n  others: {'; '.join(others)}\n"
                "  rule: what was frozen is not in the file, and computes by its own config.json\n"
                "  fix:  load the folder that the run began with, with the config.json of then"
            )

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        dtype: str = "float32",
        max_shard_size: int | str | None = None,
    ) -> None:
        """Write config.json and model.safetensors, under the names that `transformers` reads.

        All files are written beside the old ones before they take their places. Tokenizers are not
        written.

        Args:
            folder:         made if it is not there.
            dtype:          "float32", "float16" or "bfloat16", rounded to the nearest.
            max_shard_size: bytes of a file, such as "2GB"; with more tensors than that, there are
                            several files and an index. A tensor is never split.

        Raises:
            CheckpointError: the disk is full, or the folder cannot be written.
            ArgumentError:   another dtype, or not a size.
        """
        write_folder(self, Path(folder), dtype, max_shard_size)


def precision_of(owner: str, dtype: Any) -> str:
    """The argument `dtype` of what loads a model, which may be PyTorch's.

    Raises:
        ArgumentError: it is neither float32 nor bfloat16.
    """
    precision = str(dtype).rpartition(".")[2]
    if precision in (FULL, SHORT):
        return precision
    raise refused(
        owner, f"dtype is {dtype!r:.60}", f'"{FULL}" or "{SHORT}"',
        'leave it out for float32; dtype="bfloat16" reads weights in 16 bits',
    )  # fmt: skip


def lies_short(name: str, parameter: Parameter, precision: str) -> bool:
    """Whether a parameter is loaded as bfloat16: matrices that products and look-ups read are.

    Vectors are small; a table of distances (`T5.encoder_bias`) is read by attention, which knows no
    16 bits of parameters.
    """
    return precision == SHORT and parameter.ndim == 2 and name.endswith("weight")
