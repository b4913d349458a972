"""Tuning on documents: a published language model that is trained further on one's own text.

Source: Hu et al. 2021, arXiv:2106.09685 (LoRA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dynbatch.arguments import is_count
from dynbatch.errors import ArgumentError, CheckpointError, DataError
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.pretrained import PretrainedModel, load_pretrained
from dynbatch.models.pretrained.language import CausalModel
from dynbatch.optim import AdamW, Optimizer
from dynbatch.tasks.documents import PublishedTokenizer, refuse_whole_overlap
from dynbatch.tasks.language_model import DocumentSettings, DocumentWriter
from dynbatch.tasks.options import not_negative, option, passes, share
from dynbatch.tasks.task import Parts, checked_description
from dynbatch.tasks.tuning import TuningSettings, adapt, fitted_steps, folder_to_begin_from
from dynbatch.tasks.words import is_share
from dynbatch.text.folder import copy_tokenizer, load_tokenizer
from dynbatch.train import CheckpointInfo

BYTES_OF_A_TOKEN = 4
"""About so many, of English text and a vocabulary of tens of thousands."""


@dataclass(frozen=True, kw_only=True)
class DocumentTuningSettings(TuningSettings, DocumentSettings):
    """Settings of the tuning of a published language model."""

    from_: str | None = option(
        None, "folder of the GPT-2, Llama or other causal model to begin from", str, is_kept=False
    )
    epochs: int = option(3, "passes over the data", passes)
    longest: int = option(512, "tokens that the model looks back; longer documents are cut")
    overlap: int = option(64, "tokens of a cut document that are read once more", not_negative)
    dropout: float = option(
        0.0, "probability that a feature that LoRA's matrices read is dropped", share
    )


class DocumentTuning(DocumentWriter):
    """A published causal model that goes on with documents, and its tokenizer.

    With LoRA a checkpoint has the matrices alone, and the folder that the run began from the model.

    Args:
        model:     a `CausalModel`.
        tokenizer: of its folder; documents stand between the ids that config.json names.
        kept:      the folder, by an absolute path; `longest`, `overlap`, and `lora` and `dropout`.
    """

    name = "document-tuning"
    Settings = DocumentTuningSettings

    @classmethod
    def begin(cls, parts: Parts, settings: Any) -> Self:
        """The model of a folder; its tokenizer is put into the run's folder.

        Raises:
            DataError:       there is no folder to begin from, or its model is not a causal one.
            CheckpointError: the folder has no model, or no tokenizer.
            ArgumentError:   pieces of long documents would overlap whole, or a dropout is asked for
                that nothing has.
        """
        if settings.dropout and settings.lora is None:
            raise ArgumentError(
                f"--dropout {settings.dropout} without --lora: nothing would be dropped by it.\n"
                "  rule: it is for what LoRA's matrices read; the model has the dropout of its "
                "config.json\n"
                "  fix:  --lora 8, or leave --dropout out"
            )
        folder = folder_to_begin_from(
            settings, cls.name, "--from FOLDER is a GPT-2, Llama or other causal model, with its "
            "tokenizer",
            "--from smollm2, after hf download HuggingFaceTB/SmolLM2-135M --local-dir smollm2",
        )  # fmt: skip
        model = cls._model(folder)
        names = ("lora", "dropout", "longest", "overlap")
        kept: dict[str, Any] = {name: getattr(settings, name) for name in names}
        kept["from"] = str(folder.resolve())
        kept["longest"] = min(settings.longest, model.positions or settings.longest)
        refuse_whole_overlap(settings.overlap, kept["longest"])
        task = cls(model, _tokenizer(model, folder), kept)
        adapt(model, kept["lora"], kept["dropout"], kept["from"], "CAUSAL_LM")
        if settings.output is not None:
            copy_tokenizer(folder, settings.output)
        return task

    @classmethod
    def fitted(cls, texts: Sequence[str], settings: Any) -> dict[str, Any]:
        """Smaller mini-batches and a shorter warm-up, where there is little text."""
        tokens = sum([len(text.encode()) for text in texts]) // BYTES_OF_A_TOKEN
        max_tokens = min(settings.max_tokens, max(128, tokens // 20))
        steps = fitted_steps(settings.epochs * tokens // max_tokens, settings)
        return {"max_tokens": max_tokens, **steps}

    @property
    def saves_frozen(self) -> bool:
        return self._kept["lora"] is None

    @property
    def longest(self) -> int:
        return int(self._kept["longest"])

    def optimizer(self, settings: Any) -> Optimizer:
        """AdamW, of the matrices alone where LoRA trains them."""
        return AdamW(self.model, lr=settings.lr)

    def padded_bytes(self, precision: str = FULL) -> None:
        """Not known for published models."""

    def description(self) -> dict[str, Any]:
        """The folder that the model is from, and how it was tuned."""
        return dict(self._kept)

    @classmethod
    def described(cls, info: CheckpointInfo) -> Self:
        """The task of a checkpoint: with LoRA the model of the folder that the run began from.

        Raises:
            CheckpointError: that is gone, or has another kind of model; or the description is
                damaged.
        """
        kept = checked_description(info, _DESCRIPTION)
        path, base = Path(info.path), Path(kept["from"])
        if kept["lora"] is None:
            model = load_pretrained(path)
        elif not base.is_dir():
            raise CheckpointError(
                f"{path}: LoRA's matrices for the model of {base}, where there is no folder.\n"
                "  rule: with --lora a run keeps what it trains, and reads the model from the "
                "folder of --from\n"
                f"  fix:  put that folder back to {base}, or say where it is now: --from FOLDER"
            )
        else:
            model = cls._model(base)
            adapt(model, kept["lora"], kept["dropout"], kept["from"], "CAUSAL_LM")
        return cls(model, _tokenizer(model, path.parent), kept)

    @staticmethod
    def _model(folder: Path) -> Any:
        """The causal model of a folder.

        Raises:
            DataError: it is another.
        """
        model = load_pretrained(folder)
        if not isinstance(model, CausalModel):
            raise DataError(
                f"--from {folder}: a {type(model).__name__}, which does not continue text.\n"
                "  rule: documents are for a causal model, such as GPT-2, Llama or Qwen; an "
                "encoder is tuned on label<TAB>text\n"
                "  fix:  give the folder of a causal model, or such a file"
            )
        return model


def _tokenizer(model: PretrainedModel, folder: Path) -> PublishedTokenizer:
    """The tokenizer of a folder, with the marks that a model's config.json names.

    Raises:
        CheckpointError: there is no tokenizer, or no mark.
    """
    config = model.config.to_json()
    begins, named = [config.get(f"{name}_token_id") for name in ("bos", "eos")]
    ends = tuple(named) if isinstance(named, list) and named else (named,)
    begin, size = ends[0] if begins is None else begins, model.config.vocab_size
    if not all([type(mark) is int and 0 <= mark < size for mark in (begin, *ends)]):
        raise CheckpointError(
            f"{folder}: its bos_token_id is {begins!r:.40}, and its eos_token_id {named!r:.40}.\n"
            f"  rule: documents stand between marks, ids below {size}, the model's vocab_size; "
            "without bos_token_id both are eos_token_id\n"
            '  fix:  put "eos_token_id" into its config.json, the id of its "</s>" or '
            '"<|endoftext|>"'
        )
    return PublishedTokenizer(load_tokenizer(folder), begin, ends)


_DESCRIPTION = {
    "from": lambda value: isinstance(value, str) and value != "",
    "lora": lambda value: value is None or is_count(value),
    "dropout": is_share,
    "longest": is_count,
    "overlap": is_count,
}
