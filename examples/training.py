"""The command line of the training examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynbatch.commands.status import exit_status
from dynbatch.tasks.options import given
from dynbatch.tasks.settings import Settings, settings_of
from dynbatch.tasks.training import prepared


def command(
    settings: type[Settings], run: Callable[[Settings], None], argv: Sequence[str] | None,
    prog: str, what: str,
) -> int:  # fmt: skip
    """Run an example with settings of the command line. The exit status is that of `exit_status`.

    With `--resume` those that are not given are the run's.
    """
    named = given(settings, argv, f"python -m {prog}", what)

    def alone() -> None:
        asked = settings_of(settings, named)
        with prepared(asked):
            run(asked)

    return exit_status(alone)
