"""Groups of parameters: each has settings of its own in one optimizer, as PyTorch writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynbatch.arguments import listed, refused, shown
from dynbatch.named_parameters import HasParameters, Parameters, named
from dynbatch.parameter import Parameter

Pairs = list[tuple[str, Parameter]]

PARAMS = "params"


def decay_groups(model: HasParameters, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of a model's parameters, for an optimizer: vectors and numbers do not decay.

    They are biases and the gains of norms, which decay would only pull away from what they are for.
    Embeddings are matrices; weights of convolutions have more dimensions, and decay as matrices do.

    Example:
        >>> from dynbatch import models, optim
        >>> model = models.Linear(3, 2)
        >>> optimizer = optim.AdamW(optim.decay_groups(model, weight_decay=0.1), lr=3e-4)
        >>> [(len(list(g.named_parameters())), g.weight_decay) for g in optimizer.groups]
        [(1, 0.1), (1, 0.0)]
    """
    pairs = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {PARAMS: [pair for pair in pairs if len(pair[1].shape) > 1], "weight_decay": weight_decay},
        {PARAMS: [pair for pair in pairs if len(pair[1].shape) < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group[PARAMS]]


def read_groups(owner: str, parameters: Parameters) -> list[tuple[dict[str, Any], Pairs]] | None:
    """Settings and named parameters of each group; None where there are no groups.

    Raises:
        ArgumentError: a group is not a dict with parameters under "params", or a parameter is in
            two of them.
        DtypeError:    a group holds something else than parameters.
    """
    if isinstance(parameters, Mapping):
        raise refused(
            owner, "parameters is a dict", "groups are a list of dicts", "put the dict into a list"
        )
    if not isinstance(parameters, list | tuple):
        return None
    items: Sequence[Any] = parameters
    if not any([isinstance(item, Mapping) for item in items]):
        return None
    group_of: dict[int, int] = {}
    pairs: list[Any] = []
    for number, group in enumerate(items):
        where = f"group {number} of the parameters"
        if not isinstance(group, Mapping) or PARAMS not in group:
            keys = f"has the keys {list(group)}" if isinstance(group, Mapping) else shown(group)
            raise refused(
                owner, f"{where} {keys}", 'a dict with the group\'s parameters as "params", and '
                "settings of its own", '{"params": model.encoder, "lr": 1e-4}',
            )  # fmt: skip
        for item in _items(owner, group[PARAMS]):
            parameter = item[1] if isinstance(item, tuple) else item
            if isinstance(parameter, Parameter):
                other = group_of.setdefault(parameter.uid, number)
                if other != number:
                    raise refused(
                        owner, f"{parameter.name!r} is in group {other} and in {where}",
                        "a parameter is in one group", "leave it out of one of them",
                    )  # fmt: skip
            pairs.append(item)
    groups: list[tuple[dict[str, Any], Pairs]] = [
        ({name: value for name, value in group.items() if name != PARAMS}, []) for group in items
    ]
    for name, parameter in named(owner, pairs):
        groups[group_of[parameter.uid]][1].append((name, parameter))
    return groups


def _items(owner: str, parameters: Any) -> list[Any]:
    if isinstance(parameters, Parameter):
        return [parameters]
    if isinstance(parameters, HasParameters) and not isinstance(parameters, type):
        return list(parameters.named_parameters())
    return listed(owner, PARAMS, parameters, "give a model, or a list of parameters")
