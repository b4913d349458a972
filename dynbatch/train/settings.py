"""What a `Trainer` is given, checked when it is made and not when an epoch has run."""

from __future__ import annotations

from typing import Any

from dynbatch.arguments import function, number, refused, shown, size, switch
from dynbatch.optim import Optimizer, Schedule

# How each function is called.
FUNCTIONS = {
    "loss_function": "loss_function(graph, model, example) -> scalar node",
    "num_tokens": "num_tokens(example) -> tokens",
    "validate": "validate(model) -> metric",
    "padded_bytes": "padded_bytes(batch) -> bytes",
    "make_graph": "make_graph() -> Graph",
}
# The least that each count may be.
COUNTS = {"memory_every": 1, "checkpoint_every": 0, "patience": 0}


def check_settings(trainer: Any) -> None:
    """Check the types of a trainer's settings.

    Raises:
        ArgumentError: one is not what it must be.
    """
    model, optimizer, schedule = trainer.model, trainer.optimizer, trainer.schedule
    if not all([callable(getattr(model, name, None)) for name in ("train", "eval")]):
        raise _refused("model", model, "a model with train() and eval()", "give a models.Module")
    if isinstance(model, type):
        raise _refused("model", model, "a model, made", f"make it first: {model.__name__}(…)")
    if not isinstance(optimizer, Optimizer):
        fix = "give optim.Adam(model)"
        raise _refused("optimizer", optimizer, "an optimizer of the model's parameters", fix)
    if schedule is not None and not isinstance(schedule, Schedule):
        fix = "give optim.Cosine(optimizer, total_steps), or leave it out"
        raise _refused("schedule", schedule, "a schedule of the optimizer", fix)
    if not callable(getattr(trainer.batches, "epoch", None)):
        raise _refused(
            "batches", trainer.batches,
            "an object whose epoch(n) gives the mini-batches of epoch n, lists of examples",
            "train.SentenceBatches(examples, batch_size=32), or train.TokenBatches",
        )  # fmt: skip
    for name, form in FUNCTIONS.items():
        value = getattr(trainer, name)
        if value is not None or name == "loss_function":
            function("Trainer", name, value, form)
    for name, least in COUNTS.items():
        value = getattr(trainer, name)
        if value is not None or name == "memory_every":
            size("Trainer", name, value, least)
    if trainer.clip_norm is not None:
        number("Trainer", "clip_norm", trainer.clip_norm, "[0, inf]")
    switch("Trainer", "higher_is_better", trainer.higher_is_better)


def _refused(name: str, value: Any, rule: str, fix: str) -> Exception:
    return refused("Trainer", f"{name} is {shown(value)}", rule, fix)
