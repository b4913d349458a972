"""Compares an optimizer's saved state with the optimizer that is to load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from dynbatch.arguments import state_differences
from dynbatch.backend import Array
from dynbatch.errors import CheckpointError


def names_array(names: Iterable[str]) -> Array:
    """The names of a group's parameters as an array, in which a checkpoint keeps them."""
    return np.frombuffer("\n".join(sorted(names)).encode(), np.uint8)


def require_fitting(
    owner: str,
    groups: Sequence[Iterable[str]],
    slots: Mapping[str, Mapping[str, tuple[int, ...]]],
    state: Mapping[str, Array],
) -> None:
    """Check that a state is one of an optimizer with these groups and slots.

    Args:
        groups: names of each group's parameters; none where there are no groups.
        slots:  by a parameter's name, its slots and their shapes.

    Raises:
        CheckpointError: a name is missing or unknown, a shape differs, a rate is not a number
            >= 0, or the parameters were in other groups.
    """
    _require_same_groups(owner, groups, state)
    rates = ["lr", *[f"groups/{k}/lr" for k in range(len(groups))]]
    names = [f"groups/{k}/names" for k in range(len(groups))]
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(rates, ())
    wanted |= {name: np.shape(state[name]) for name in names}
    for name, shapes in slots.items():
        if f"{name}/steps" in state:
            wanted[f"{name}/steps"] = ()
            wanted |= {f"{name}/{slot}": shape for slot, shape in shapes.items()}
    saved_shapes = {name: np.shape(array) for name, array in state.items()}
    if differences := state_differences(wanted, saved_shapes, "optimizer"):
        raise CheckpointError(
            f"{owner}: the state does not fit this optimizer; nothing was loaded.\n{differences}\n"
            "  fix: use the algorithm, its settings and the model that it was saved with."
        )
    for name in rates:
        rate = np.asarray(state[name])
        if rate.dtype.kind not in "fiu" or not 0 <= rate < inf:
            raise CheckpointError(
                f"{owner}: the state's {name} is {rate}; nothing was loaded.\n"
                "  rule: a number >= 0\n  fix:  the file is damaged; take an earlier checkpoint"
            )


def _require_same_groups(
    owner: str, groups: Sequence[Iterable[str]], state: Mapping[str, Array]
) -> None:
    """Check that a state was saved with these groups of names.

    Raises:
        CheckpointError: with others; names a parameter that was in another group.
    """
    here = {name: number for number, group in enumerate(groups) for name in group}
    there: dict[str, int] = {}
    number = 0
    while (array := state.get(f"groups/{number}/names")) is not None:
        text = np.asarray(array).tobytes().decode("utf-8", "replace")
        there |= dict.fromkeys(text.split("\n"), number)
        number += 1
    moved = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if moved:
        before, now = (_place(groups_of.get(moved[0])) for groups_of in (there, here))
        raise CheckpointError(
            f"{owner}: saved with other groups of parameters; nothing was loaded.\n"
            f"  {moved[0]!r} was in {before}, and is in {now}\n"
            "  fix: give the optimizer the groups that it was saved with."
        )


def _place(group: int | None) -> str:
    return "no group" if group is None else f"group {group}"
