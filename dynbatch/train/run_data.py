"""What a trainer adds to a checkpoint: above all what its mini-batches are made of, so that it is
not resumed on other data unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import length_hint
from typing import Any

from dynbatch.arguments import is_count
from dynbatch.errors import CheckpointError
from dynbatch.train.checkpoint import CheckpointInfo
from dynbatch.train.checkpoint_file import wrong_field
from dynbatch.train.digest import data_digest
from dynbatch.train.protocols import Batches
from dynbatch.train.stopping import EarlyStopping

Summary = dict[str, Any]


def summary_of(batches: Batches, other_data: Mapping[str, Any]) -> Summary:
    """All that decides a run's mini-batches, as far as they tell, and digests of its other data."""
    own = getattr(batches, "summary", None)
    found: Summary = {} if own is None else dict(own())
    return found | {name: data_digest(data) for name, data in other_data.items()}


def require_same_data(
    info: CheckpointInfo, saved: Summary, now: Summary, saved_batches: int, batches: Batches
) -> None:
    """Check that a checkpoint's run had these mini-batches.

    What a checkpoint does not say is not compared. Mini-batches that cannot be summed up are only
    counted, and only where a run stopped within an epoch.

    Raises:
        CheckpointError: they differ; says in what.
    """
    changed = {
        name: (saved[name], now[name]) for name in now if name in saved and saved[name] != now[name]
    }
    is_counted = not saved or not hasattr(batches, "summary")
    if not changed and is_counted and info.position:
        number = length_hint(batches.epoch(info.epoch), 0)
        if number != saved_batches:
            changed = {"mini-batches of an epoch": (saved_batches, number)}
    if changed:
        said = "\n".join(
            f"  {name}: {_shown(before)} in the checkpoint, {_shown(after)} now"
            for name, (before, after) in changed.items()
        )
        raise CheckpointError(
            f"{info.path}: the run was begun with other data; nothing was loaded.\n{said}\n"
            "  rule: a run is resumed with the data, batch size and seed it was begun with\n"
            "  fix:  give these; or go on with the new data on purpose, the running epoch anew, by "
            "resume(data_changed=True), which is --data-changed on a command line"
        )


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def saved_by_trainer(info: CheckpointInfo) -> dict[str, Any]:
    """What a trainer added to a checkpoint; the usual where it was saved without a trainer.

    Raises:
        CheckpointError: it is damaged.
    """
    usual = {"stopping": EarlyStopping().state_dict(), "num_batches": 0, "data": {}}
    saved = info.extra.get("trainer", {})
    found = {**usual, **saved} if isinstance(saved, dict) else saved
    kinds = {"stopping": _is_object, "num_batches": is_count, "data": _is_object}
    problem = wrong_field(found, kinds) or EarlyStopping.wrong(found["stopping"])
    if problem:
        raise CheckpointError(
            f"{info.path}: damaged: what the trainer saved has {problem}; nothing was loaded.\n"
            "  fix: take another copy, or an earlier checkpoint of the run."
        )
    return found


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
