"""`Family`: what a family of models says about itself and its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dynbatch.models.initial import Rng
from dynbatch.models.module import Module
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.table import Shape, Stored, Table, find


class Family(Module):
    """A model made from a configuration, and where its parameters are in a checkpoint.

    A family's `__init__(self, config, *, rng=None)` keeps the configuration as `self.config`. It
    takes all initial values from `models.initial` and leaves them alone: while a checkpoint is
    read, parameters have shapes and no values.

    Class attributes:
        config_type:  its `ModelConfig`.
        architecture: the class in `transformers`; config.json names it.
        prefix:       with which names in a file may begin or not, such as "bert.".
        skipped:      names in a file that are not read, with `*` and `**` as in a table: buffers,
                      and heads that the model does without.
        spare:        further names of `tied` that are read only where the other is absent, and may
                      differ from it.
    """

    config_type: ClassVar[type[ModelConfig]] = ModelConfig
    architecture: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    skipped: ClassVar[tuple[str, ...]] = ()
    spare: ClassVar[tuple[str, ...]] = ()

    config: Any

    def __init__(self, config: Any, *, rng: Rng = None) -> None:
        raise NotImplementedError

    def table(self) -> Table:
        """The entry of each parameter in a file: see `dynbatch.models.pretrained.table`."""
        raise NotImplementedError

    def tied(self) -> Mapping[str, str]:
        """Further names of tensors in a file, and the names under which the table has them.

        A file may hold either or both, which are then equal; the table's names are written, and
        those of `spare`.
        """
        return {}

    def stored_rows(self, name: str, shape: Shape) -> list[tuple[str, int]]:
        """The tensors of a parameter in a file, and how many of its rows each has."""
        stored = find(self.table(), name)
        names = stored.names
        parts = Stored(names, stored.rows).shapes(shape)
        return [(one, part[0]) for one, part in zip(names, parts, strict=True)]
