"""`PretrainedModel`: from a checkpoint's folder into a model, and out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dynbatch.errors import ArgumentError
from dynbatch.models.initial import Draws, unfilled
from dynbatch.models.pretrained.config import ModelConfig, unusable
from dynbatch.models.pretrained.family import Family
from dynbatch.models.pretrained.folder import CONFIG, file_of, weight_files
from dynbatch.models.pretrained.match import Match, fresh_names
from dynbatch.models.pretrained.tensors import Mapped, tensors_of
from dynbatch.models.pretrained.writing import config_json, write_folder


class PretrainedModel(Family):
    """A model that is read from a checkpoint's folder and written to one.

    A family is a class of its own, with what `Family` declares.
    """

    KEY = "pretrained"
    """A checkpoint's entry of `extra` with the model's config.json; see `load_pretrained`."""

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, new: Sequence[str] = (), **changes: Any
    ) -> Self:
        """The model of a folder: config.json with model.safetensors, or sharded with an index.

        Its values are float32, whatever the file's (float32, float16, bfloat16 or float64), and it
        is in evaluation mode, as in `transformers`: `model.train()` turns dropout on. Nothing is
        executed. Besides the model itself little memory is used: a file is memory-mapped, and its
        shapes are compared with the model's before anything is allocated.

        Args:
            folder:  of the checkpoint.
            new:     parameters that begin at random, as in a model made from its configuration,
                     such as ["classifier.{}"]: with `*` for a number, `{}` for weight or bias, and
                     `**` at the end for any rest. What the folder has for them is not read.
            changes: fields of the configuration in place of those in config.json.

        Raises:
            CheckpointError: a file is absent, damaged, or a pickle; or tensors are missing,
                unexpected or of other shapes than the configuration says: all are named.
            ArgumentError: a change is not a field of the configuration, or `new` names what is not
                a parameter.
        """
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
            if name in fresh:
                parameter.replace(draws[parameter.uid]())
                continue
            array = np.empty(parameter.shape, np.float32)
            for tensor, part in match.parts(name, array):
                mapped[tensor.path].read(tensor, part)
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
        return {self.KEY: config_json(self)}

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
