"""What training examples share about runs that go on: which settings may have changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynbatch.errors import CheckpointError


def refuse_other_settings(
    checkpoint: Path, saved: Mapping[str, Any], asked: Mapping[str, Any], free: Sequence[str] = ()
) -> None:
    """Check that a run goes on with the settings it began with.

    `epochs` may be raised, which extends it, also when it is done: its learning rate then goes on
    where a run of that many epochs would be, higher than it was at the end. `patience` is free, as
    nothing that was done depends on it. What the checkpoint does not have is not compared.

    Args:
        saved: of the checkpoint.
        asked: of the command line.
        free:  names of others that may be another now.

    Raises:
        CheckpointError: another one is asked for; says which.
    """
    for name, value in asked.items():
        flag, has = f"--{name.replace('_', '-')}", saved.get(name, value)
        if value == has or name == "patience" or name in free:
            continue
        rule, fix = "a run goes on with the settings it began with", f"leave {flag} out"
        if name == "epochs":
            if value > has:
                continue
            rule, fix = "--epochs may be raised, which extends a run", f"{flag} {has} or more"
        elif isinstance(value, bool):
            fix = f"give {flag} as before" if has else fix
        elif has is not None:
            fix = f"{flag} {has}"
        raise CheckpointError(
            f"{checkpoint}: the run has {flag} {has}, not {value}.\n"
            f"  rule: {rule}\n"
            f"  fix:  {fix}; or begin a run in another --output without --resume"
        )
