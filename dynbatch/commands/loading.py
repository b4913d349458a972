"""A model and its tokenizer, out of what `dynbatch generate` is given: a folder or checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import shown
from dynbatch.backend import Array
from dynbatch.commands.arguments import function_of_the_user
from dynbatch.errors import ArgumentError, CheckpointError, DataError
from dynbatch.generation.config import GenerationConfig
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models import pretrained
from dynbatch.models.pretrained import BertForClassification, PretrainedModel, load_pretrained
from dynbatch.models.pretrained.folder import CONFIG, fault, file_of, read_json, shorten
from dynbatch.models.pretrained.language import CausalModel, TextToTextModel
from dynbatch.tasks.fine_tuning import FineTuning
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.task import LabellingTask, TextCoder, WritingTask
from dynbatch.text import ByteTokenizer
from dynbatch.text.folder import tokenizer_for
from dynbatch.text.lines import nearest
from dynbatch.train import read_checkpoint
from dynbatch.train.run_folder import model_file

FAMILIES = {
    name: one
    for one in vars(pretrained).values()
    if isinstance(one, type) and issubclass(one, CausalModel | TextToTextModel)
    for name in one.config_type.model_types
}
"""Families that write text, by the model_type of config.json."""


class TextModel(NamedTuple):
    """A model that generates, its tokenizer, and how its tokens are chosen by default."""

    model: Any
    tokenizer: TextCoder
    config: GenerationConfig


SUFFIX = ".safetensors"


class IdTokenizer:
    """Text that is ids already: "17 4 98"."""

    def encode(self, text: str) -> Array:
        """The ids of a text, (T,) int64.

        Raises:
            DataError: something in it is not an id.
        """
        try:
            return np.array([int(one) for one in text.split()], np.int64)
        except (ValueError, OverflowError):
            raise DataError(
                f"{text[:40]!r} is not a row of ids.\n  rule: whole numbers with blanks between, "
                'such as "17 4 98"\n'
                "  fix:  give such ids, or a tokenizer that makes them of text"
            ) from None

    def decode(self, ids: ArrayLike) -> str:
        return " ".join([str(one) for one in np.asarray(ids).tolist()])


def load(
    name: str, loader: str | None = None, tokenizer: str | None = None, dtype: str = FULL,
    base: str | None = None,
) -> TextModel | LabellingTask:  # fmt: skip
    """The model of a checkpoint's folder or file, or what gives labels to texts by it. Nothing in
    it is executed.

    Args:
        name:      a folder in the layout of Hugging Face; or a checkpoint of dynbatch or its
                   folder.
        loader:    "package.module:function": function(path) returns the model, its tokenizer and a
                   `GenerationConfig`, in place of all that is known here.
        tokenizer: "bytes", "ids", or a folder, in place of the model's.
        dtype:     of the weights, as for `load_pretrained`.
        base:      as for `load_task`; there is then no loader.

    Raises:
        ArgumentError:   weights in 16 bits are asked for of a model that is of no family there.
        CheckpointError: there is none, or it is damaged, or its model cannot generate.
        DataError:       there is no such loader.
        ImportError:     its tokenizer needs a package that is not installed.
    """
    path = Path(name)
    if not path.exists():
        raise CheckpointError(
            f"{name}: there is no such file or folder.\n"
            "  rule: a folder with config.json and model.safetensors, or a checkpoint of dynbatch\n"
            f"  fix:  {_near(path)}"
        )
    if loader is None and path.is_file() and path.suffix != SUFFIX:
        raise CheckpointError(
            f"{name}: no checkpoint.\n  rule: a checkpoint of dynbatch is a file *{SUFFIX}\n"
            f"  fix:  give the run's folder: {path.parent}"
        )
    if loader is None and base is None and (path / CONFIG).exists():
        return _pretrained(path, tokenizer, dtype)
    path = model_file(path)
    loaded = _made(loader, path) if loader else _of_checkpoint(path, tokenizer, dtype, base)
    if dtype != FULL and not any([p.is_short for p in loaded.model.parameters()]):
        is_family = isinstance(loaded.model, PretrainedModel)
        fix = f"dynbatch convert {name} FOLDER, and give FOLDER; or " if is_family else ""
        raise ArgumentError(
            f"--dtype {dtype}: {name} is a run of a task, or a model of your own.\n"
            "  rule: 16 bits are for folders and checkpoints of families of Hugging Face's\n"
            f"  fix:  {fix}leave --dtype out; --precision has values in 16 bits"
        )
    if tokenizer is None or not isinstance(loaded, TextModel):
        return loaded
    rows = getattr(getattr(loaded.model, "config", None), "vocab_size", None)
    return loaded._replace(tokenizer=_tokenizer(tokenizer, rows))


def _near(path: Path) -> str:
    near = nearest(path)
    return f"{near}?" if near else "dynbatch train makes one: --output FOLDER"


def _made(loader: str, path: Path) -> TextModel:
    """The result of a loader, checked.

    Raises:
        DataError: something else than it should.
    """
    made = function_of_the_user("--loader", loader)(path)
    if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[2], GenerationConfig):
        raise DataError(
            f"--loader {loader}: it returned {shown(made)}.\n"
            "  rule: (model, tokenizer, GenerationConfig)"
        )
    return TextModel(*made)


def _pretrained(folder: Path, tokenizer: str | None, dtype: str) -> TextModel | LabellingTask:
    """The model of a folder in the layout of Hugging Face."""
    path = file_of(folder, CONFIG)
    config_json = read_json(path)
    kind, names = config_json.get("model_type"), config_json.get("architectures")
    if isinstance(names, list) and str(names[:1]).endswith("ForSequenceClassification']"):
        model = load_pretrained(folder, dtype=dtype)
        if isinstance(model, BertForClassification):
            coder = _tokenizer(tokenizer or str(folder), model.config.vocab_size)
            return FineTuning(coder, model.config.labels, model)
    if kind not in FAMILIES:
        raise fault(
            path, f"its model_type is {shorten(kind)}, which does not write text here",
            f"choose a checkpoint of {', '.join(sorted(FAMILIES))}, or a classifier of texts",
        )  # fmt: skip
    coder = _tokenizer(tokenizer or str(folder), config_json.get("vocab_size"))
    config = GenerationConfig.from_pretrained(folder)
    return TextModel(FAMILIES[kind].from_pretrained(folder, dtype=dtype), coder, config)


def _tokenizer(name: str, rows: object) -> TextCoder:
    """The tokenizer of that name, for a model whose table has so many rows.

    Raises:
        CheckpointError: its folder has none, or one of more ids.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name == "ids":
        return IdTokenizer()
    return tokenizer_for(name, rows)


def _of_checkpoint(
    path: Path, tokenizer: str | None, dtype: str, base: str | None
) -> TextModel | LabellingTask:
    """The model of a run of `dynbatch train`, of an example, or of a family of Hugging Face, whose
    tokenizer is beside it.

    Raises:
        CheckpointError: it is of another program, or of a family that writes no text.
    """
    info = read_checkpoint(path)
    config = info.extra.get(PretrainedModel.KEY)
    if isinstance(config, dict) and "task" not in info.extra:
        model, folder = load_pretrained(path, dtype=dtype), path.parent
        if isinstance(model, BertForClassification):
            coder = _tokenizer(tokenizer or str(folder), model.config.vocab_size)
            return FineTuning(coder, model.config.labels, model)
        if type(model) not in FAMILIES.values():
            raise CheckpointError(
                f"{path}: a {type(model).__name__}, which writes no text.\n"
                "  rule: decoders, T5, Marian and BART write, BERT and RoBERTa classify texts\n"
                f"  fix:  use it from Python: load_pretrained({str(path)!r})"
            )
        is_there = (folder / "generation_config.json").exists()
        chosen = GenerationConfig.from_pretrained(folder) if is_there else None
        coder = _tokenizer(tokenizer or str(folder), config.get("vocab_size"))
        return TextModel(model, coder, chosen or GenerationConfig.of_model(config))
    if "task" not in info.extra:
        raise CheckpointError(
            f"{path}: a checkpoint of dynbatch, which does not say how its model is made.\n"
            "  rule: dynbatch train and the examples name their task in it; a checkpoint runs no "
            "code of its own choice\n"
            "  fix:  give --loader package.module:function if you trust it: function(path) returns "
            "(model, tokenizer, GenerationConfig)"
        )
    task = load_task(path, base)
    if isinstance(task, WritingTask):
        return TextModel(task.model, task.coder(), task.generation())
    assert isinstance(task, LabellingTask)  # a task is one or the other
    return task
