"""`Task`: what is learned from a file of text, by a model with its vocabularies."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.backend import Array
from dynbatch.errors import CheckpointError
from dynbatch.generation.config import GenerationConfig
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.nodes.node import Node
from dynbatch.optim import Adam, Optimizer
from dynbatch.tasks.settings import TaskSettings
from dynbatch.text import Vocabulary
from dynbatch.train import CheckpointInfo, SentenceBatches, TokenBatches
from dynbatch.train.checkpoint_file import Rule, wrong_field
from dynbatch.train.run_folder import other_copy

Batches = SentenceBatches[Any] | TokenBatches[Any]


class TextCoder(Protocol):
    """A tokenizer, as far as generating goes."""

    def encode(self, text: str, /) -> Array: ...

    def decode(self, ids: ArrayLike, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Examples as text: those to learn from, those held out for validation, those for a test.

    `dev` and `test` may be empty.
    """

    train: list[Any]
    dev: list[Any]
    test: list[Any]


class Task(ABC):
    """A model with its vocabularies, untrained or trained, and the texts that it is trained on.

    An example is a text with what is to be learned of it, as `read` returns them; in ids it is what
    the model's loss takes. A model is made by `begin` out of texts, or by `described` out of a
    checkpoint.

    Attributes:
        name:             of the task: `--task NAME`, and `extra["task"]` of checkpoints.
        form:             of its files, in a few words.
        Settings:         the dataclass of its settings.
        higher_is_better: of the first metric of `evaluate`, which decides which model is best.
        most_validated:   the most held-out texts that each epoch's validation looks at, if not all.
        is_bounded:       whether an example has few tokens however long its text is.
        model:            a `models.Module`.
    """

    name: ClassVar[str]
    form: ClassVar[str]
    Settings: ClassVar[type[TaskSettings]]
    higher_is_better: ClassVar[bool] = False
    most_validated: ClassVar[int | None] = None
    is_bounded: ClassVar[bool] = False
    model: Any

    @property
    def saves_frozen(self) -> bool:
        """Whether checkpoints have the parameters that are not trained, too."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.model.num_parameters():,} parameters)"

    # From a file to a model -----------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def read(cls, path: str | Path, settings: Any) -> list[Any]:
        """The examples of a file, as text.

        Raises:
            DataError: it cannot be read, or a line is wrong; says file:line, the rule and a fix.
        """

    @classmethod
    @abstractmethod
    def key(cls, text: Any) -> str:
        """A key that decides in which part an example is: equal keys are on one side."""

    @classmethod
    @abstractmethod
    def begin(cls, parts: Parts, settings: Any) -> Self:
        """Vocabularies of the texts to learn from, and an untrained model."""

    @classmethod
    def fitted(cls, texts: Sequence[Any], settings: Any) -> dict[str, Any]:
        """Settings, by name, that suit so much data where nobody gives them: a training takes
        minutes, and of little data several hundred updates."""
        return {}

    # Training -------------------------------------------------------------------------------------

    @abstractmethod
    def examples(self, texts: Sequence[Any]) -> list[Any]:
        """Examples in ids; one text may give several."""

    @abstractmethod
    def loss(self, graph: Graph, model: Any, example: Any) -> Node:
        """The loss of an example in ids, in nats, summed over its `num_tokens`."""

    @abstractmethod
    def num_tokens(self, example: Any) -> int:
        """The tokens that the loss of an example is summed over."""

    def length(self, example: Any) -> int:
        """The tokens that are read of an example, where these are not those of the loss."""
        return self.num_tokens(example)

    @abstractmethod
    def evaluate(self, texts: Sequence[Any]) -> dict[str, float]:
        """Metrics of held-out texts, by name; the first decides which model is best."""

    def batches(self, examples: Sequence[Any], settings: Any) -> Batches:
        """The mini-batches of examples in ids: `batch_size` each."""
        return SentenceBatches(examples, settings.batch_size, settings.seed)

    def optimizer(self, settings: Any) -> Optimizer:
        """The optimizer: Adam."""
        return Adam(self.model, lr=settings.lr)

    def padded_bytes(self, precision: str = FULL) -> Callable[[Sequence[Any]], int] | None:
        """The bytes that a mini-batch would take padded, where that is known (see `Trainer`)."""
        return None

    # What people see ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def shown(cls, text: Any) -> str:
        """An example on one line, as it was understood."""

    @classmethod
    def prompt(cls, text: Any) -> str:
        """A prompt for `dynbatch generate` of an example such as this one."""
        return ""

    @classmethod
    @abstractmethod
    def sizes(cls, texts: Sequence[Any]) -> str:
        """The number of examples, and their sizes, in a few words."""

    def tokens(self, held_out: Sequence[Any]) -> list[str]:
        """Lines that say what texts are cut into, and what of those held out cannot be written."""
        return []

    @abstractmethod
    def samples(self, texts: Sequence[Any], settings: Any, rng: np.random.Generator) -> list[str]:
        """Lines that show what the model does by now.

        Args:
            texts: `settings.samples` held-out ones.
            rng:   for what is drawn; checkpoints keep its state.
        """

    def report(self, parts: Parts) -> str:
        """The test's report at the end of training: the metrics, and those of baselines
        that know `parts.train`, where there are any."""
        measures = self.evaluate(parts.test)
        return "\n".join([f"{name:24}  {value:.4f}" for name, value in measures.items()])

    def told(self, found: dict[str, float], texts: Sequence[Any]) -> str:
        """The line that says what a validation on these texts found."""
        return f"validation: {', '.join([f'{value:.4f} {name}' for name, value in found.items()])}"

    def unknown(self, texts: Sequence[Any]) -> float:
        """The share of tokens that the vocabularies lack."""
        return 0.0

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies that the model was made for, by what stands in them."""
        return {}

    def differences(self, other: Self) -> list[str]:
        """Differences from the vocabularies of another task of this kind, a line each."""
        theirs = other.vocabularies()
        said = {name: mine.difference(theirs[name]) for name, mine in self.vocabularies().items()}
        return [f"{name}: {difference}" for name, difference in said.items() if difference]

    # Checkpoints ----------------------------------------------------------------------------------

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """All but the parameters, for `extra["description"]` of a checkpoint: JSON."""

    @classmethod
    @abstractmethod
    def described(cls, info: CheckpointInfo) -> Self:
        """The task with an untrained model, as a checkpoint describes it.

        Raises:
            CheckpointError: the description is damaged, which is found before memory is taken.
        """


class WritingTask(Task):
    """A task whose model writes text: it goes on with a prompt, or answers a source."""

    @abstractmethod
    def coder(self) -> TextCoder:
        """Ids of prompts, and text of what is written."""

    @abstractmethod
    def generation(self) -> GenerationConfig:
        """The settings of generation where the user gives none."""


class LabellingTask(Task):
    """A task whose model gives labels to a line of text: to the whole, or to each of its words."""

    @abstractmethod
    def label(self, lines: Sequence[str], matmul: str = FULL) -> list[dict[str, Any]]:
        """The model's answer to each line of text: objects of JSON; `matmul` as in `Graph`."""

    @staticmethod
    @abstractmethod
    def line(found: dict[str, Any]) -> str:
        """One of the objects of `label` as a line of text."""


def hold_out(key: str) -> Literal["train", "dev", "test"]:
    """The part an example belongs to, from its key alone: 90 % train, 5 % dev, 5 % test.

    sha256(key) mod 20 is 0 for test and 1 for dev, so that no file lists the split, it is the same
    everywhere, and adding examples moves none of the others.

    Example:
        >>> hold_out("padding"), hold_out("hello")
        ('dev', 'test')
    """
    remainder = int(hashlib.sha256(key.encode("utf-8", "replace")).hexdigest(), 16) % 20
    return "test" if remainder == 0 else "dev" if remainder == 1 else "train"


def divided(texts: Iterable[Any], key: Callable[[Any], str]) -> Parts:
    """Examples in three parts, by `hold_out`."""
    parts = Parts([], [], [])
    for text in texts:
        getattr(parts, hold_out(key(text))).append(text)
    return parts


def checked_description(info: CheckpointInfo, fields: Mapping[str, Rule]) -> dict[str, Any]:
    """The description in a checkpoint, with the fields that it needs.

    Raises:
        CheckpointError: there is none, or a field is missing or has another form.
    """
    description = info.extra.get("description")
    problem = wrong_field(description, fields)
    if problem:
        raise damaged_description(info, problem)
    return dict(description)  # type: ignore[arg-type]  # checked


def table_widths(info: CheckpointInfo, rows: Mapping[str, int]) -> list[int]:
    """The widths of tables in a checkpoint that have so many rows each, by the layer's name.

    Raises:
        CheckpointError: one is missing, has another number of rows, or is not a matrix.
    """
    shapes = {name: info.shapes.get(f"model/{name}.weight", ()) for name in rows}
    for name, shape in shapes.items():
        if len(shape) != 2 or shape[0] != rows[name]:
            raise damaged_description(info, f"{rows[name]} rows of {name}, its tensor {shape}")
    return [shape[1] for shape in shapes.values()]


def damaged_description(info: CheckpointInfo, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{info.path}: damaged: its description of the model has {problem}; nothing was loaded.\n"
        f"  fix: {other_copy(info.path)}"
    )
