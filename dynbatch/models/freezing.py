"""`freeze` and `unfreeze`: which parameters of a model are trained."""

from __future__ import annotations

import re

from dynbatch.arguments import refused
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter


def freeze(module: Module, *names: str) -> int:
    """Keep parameters as they are: no gradient of theirs is computed, nor memory taken for it.

    Neither is one for what only they would need: backward ends at the first layer that is trained,
    a frozen linear map keeps no input. Optimizers leave frozen parameters alone, without state for
    them; `train.save_checkpoint(..., save_frozen=False)` and `Trainer(save_frozen=False)` leave
    them out of checkpoints.

    Args:
        names: of the parameters, as in `module.named_parameters()`, with `*` for any part without a
               dot and `**` for any text; all of the module by default.

    Returns:
        The number of scalars that are frozen now and were not before.

    Raises:
        ArgumentError: a name stands for no parameter.

    Example:
        >>> from dynbatch import models
        >>> model = models.Sequential(models.Linear(8, 4), models.Linear(4, 2))
        >>> models.freeze(model, "0.*"), models.freeze(model), models.unfreeze(model, "**.bias")
        (36, 10, 6)
    """
    return _set_frozen("freeze", module, names, True)


def unfreeze(module: Module, *names: str) -> int:
    """Train parameters again that were frozen; the opposite of `freeze`.

    Frozen rows of a table (`Parameter.frozen_rows`) stay so, and buffers, such as running means.

    Args:
        names: as in `freeze`.

    Returns:
        The number of scalars that are trained now and were not before.

    Raises:
        ArgumentError: a name stands for no parameter.
    """
    return _set_frozen("unfreeze", module, names, False)


def _set_frozen(owner: str, module: Module, names: tuple[str, ...], value: bool) -> int:
    named = dict(module.named_parameters())
    chosen: dict[str, Parameter] = {} if names else named
    for name in names:
        matching = {each: named[each] for each in named if _expression(name).fullmatch(each)}
        if not matching:
            raise refused(
                owner, f"{name!r} stands for no parameter of this {type(module).__name__}",
                'names as in module.named_parameters(), "*" for a part, "**" for any text',
                'print(module) shows them; "encoder.**" has all of the encoder\'s',
            )  # fmt: skip
        chosen |= matching
    count = 0
    for parameter in chosen.values():
        before = parameter.frozen
        parameter.frozen = value
        count += parameter.size * (parameter.frozen != before)
    return count


def _expression(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.compile(escaped, re.DOTALL)
