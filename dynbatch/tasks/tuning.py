"""Common parts of tasks that begin from a published model: its folder, and LoRA's matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynbatch.errors import DataError
from dynbatch.models.lora.adapting import add_adapter
from dynbatch.models.lora.config import ALL_LINEAR, LoraConfig
from dynbatch.models.module import Module
from dynbatch.tasks.options import above_zero, option
from dynbatch.train import CheckpointInfo


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """Settings of tasks that train a published model further; beside those of the task."""

    from_: str | None = option(
        None, "folder of the published model to begin from", str, is_kept=False
    )
    lora: int | None = option(
        None, "rank of the matrices that LoRA trains beside its weights (all weights are trained)"
    )
    lr: float = option(1e-4, "peak of AdamW's learning rate", above_zero)
    warmup: int = option(20, "updates until the peak, then a cosine (a tenth of all, at most 20)")
    clip: float = option(1.0, "largest norm of the gradient", above_zero)


def folder_to_begin_from(settings: TuningSettings, task: str, rule: str, fix: str) -> Path:
    """The folder of `--from`.

    Raises:
        DataError: none is named.
    """
    if settings.from_ is None:
        raise DataError(f"--task {task}: of which model?\n  rule: {rule}\n  fix:  {fix}")
    return Path(settings.from_)


def moved(info: CheckpointInfo, base: str | Path | None) -> CheckpointInfo:
    """The checkpoint of a run as if it had begun from another folder, if one is named, to which its
    published model was moved. The content is compared when trained values are loaded."""
    description = info.extra.get("description")
    if base is None or not isinstance(description, dict) or "from" not in description:
        return info
    description = {**description, "from": str(Path(base).resolve())}
    return replace(info, extra={**info.extra, "description": description})


def adapt(model: Module, rank: int | None, dropout: float, base: str, task_type: str) -> None:
    """Put LoRA's matrices beside all linear maps of a model but the output, if they have a rank.

    Args:
        base:      where the model is from.
        task_type: of PEFT's, such as "CAUSAL_LM".
    """
    if rank is not None:
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=ALL_LINEAR,
            task_type=task_type, base_model_name_or_path=base,
        )  # fmt: skip
        add_adapter(model, config)


def fitted_steps(updates: int, settings: Any) -> dict[str, Any]:
    """A warm-up of a tenth of the updates, where these are few; larger steps with LoRA, as its
    matrices begin from nothing."""
    steps = {} if settings.lora is None else {"lr": 10 * settings.lr}
    return {"warmup": min(settings.warmup, max(1, updates // 10)), **steps}
