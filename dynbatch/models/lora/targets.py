"""The layers of a model that can be adapted, by the names that PEFT has for them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dynbatch.arguments import refused
from dynbatch.models.adapter import Adaptable, Adapter
from dynbatch.models.layers import Embedding
from dynbatch.models.lora.config import ALL_LINEAR, LoraConfig, is_meant
from dynbatch.models.module import Module
from dynbatch.models.transformer.attention import MultiHeadAttention
from dynbatch.parameter import Parameter

OUTPUT = "output"
"""The path of a pretrained model's output layer, which "all-linear" leaves out."""

Tensors = list[tuple[str, int]]
"""Names, and the rows of each."""


class AdapterTarget(NamedTuple):
    """Rows of a layer's weight that are a layer of their own elsewhere, such as q_proj.

    Attributes:
        name:        of that layer.
        layer, path: whose weight it is, and the layer's path in the model.
        start, stop: the rows.
    """

    name: str
    layer: Adaptable
    path: str
    start: int
    stop: int

    @property
    def weight(self) -> Parameter:
        weight: Parameter = getattr(self.layer, self.layer.adapted_weight)
        return weight

    @property
    def width(self) -> int:
        """Columns of the weight."""
        return self.weight.shape[1]

    @property
    def is_table(self) -> bool:
        return isinstance(self.layer, Embedding)


def targets_of(model: Module) -> list[AdapterTarget]:
    """All that can be adapted, in the order of the model's layers."""
    targets, seen = [], set()
    for prefix, layer in model._named_modules():
        if id(layer) in seen or not isinstance(layer, Adaptable):
            continue
        seen.add(id(layer))
        weight = getattr(layer, layer.adapted_weight, None)
        if isinstance(weight, Parameter):  # attention to a memory has linear maps in its place
            start = 0
            for tensor, rows in _tensors(model, prefix, layer, layer.adapted_weight, weight):
                name, stop = tensor.removesuffix(".weight"), start + rows
                targets.append(AdapterTarget(name, layer, prefix[:-1], start, stop))
                start = stop
    return targets


def own_parameters(model: Module) -> Iterator[tuple[str, Parameter, Tensors]]:
    """The model's parameters but an adapter's, each once, with their tensors in files."""
    seen: set[int] = set()
    adapters: tuple[str, ...] = ()
    for prefix, layer in model._named_modules():
        if isinstance(layer, Adapter):
            adapters = (*adapters, prefix)
        if prefix.startswith(adapters):
            continue
        for name, member in layer._members():
            if isinstance(member, Parameter) and member.uid not in seen:
                seen.add(member.uid)
                yield prefix + name, member, _tensors(model, prefix, layer, name, member)


def _tensors(
    model: Module, prefix: str, layer: Module, name: str, parameter: Parameter
) -> Tensors:  # fmt: skip
    """The tensors that a parameter's rows are in files, and how many each has."""
    stored: Callable[[str, tuple[int, ...]], Tensors] | None = getattr(model, "stored_rows", None)
    if stored is not None:
        return stored(prefix + name, parameter.shape)
    if isinstance(layer, MultiHeadAttention) and name.startswith("in_proj_"):
        kind = name.removeprefix("in_proj_")
        return [
            (f"{prefix}{x}_proj.{kind}", n) for x, n in zip("qkv", layer.projected, strict=True)
        ]
    return [(prefix + name, parameter.shape[0])]


def adaptable(model: Module) -> list[str]:
    """The names of the layers that `LoraConfig.target_modules` may name.

    Example:
        >>> from dynbatch import models
        >>> layer = models.TransformerEncoderLayer(8, 2)
        >>> models.adaptable(layer)[:4]
        ['self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.out_proj']
    """
    return [target.name for target in targets_of(model)]


def chosen_targets(model: Module, config: LoraConfig, is_strict: bool) -> list[AdapterTarget]:
    """The layers that a configuration asks for.

    Args:
        is_strict: whether each of several names has to stand for one.

    Raises:
        ArgumentError: a name stands for none; or none are left, or a part of one layer's.
    """
    targets = [
        each for each in targets_of(model) if not is_under(config.saves(), each.name)
        and not is_meant(config.exclude_modules, each.name)
    ]  # fmt: skip
    wanted = config.target_modules
    if wanted is None:
        chosen = _queries_and_values(model, targets)
    elif wanted == ALL_LINEAR:
        chosen = [each for each in targets if not each.is_table and each.path != OUTPUT]
    else:
        chosen = [each for each in targets if is_meant(wanted, each.name)]
        if is_strict and not isinstance(wanted, str):
            for name in wanted:
                if not any([is_meant([name], each.name) for each in chosen]):
                    raise _unknown(model, name, targets)
    if not chosen:
        raise _unknown(model, wanted, targets)
    return chosen


def is_under(names: Sequence[str], name: str) -> bool:
    """Whether names mean a layer or one that it is a part of."""
    parts = name.split(".")
    return any([is_meant(names, ".".join(parts[:count])) for count in range(1, len(parts) + 1)])


def by_layer(targets: Sequence[AdapterTarget]) -> Mapping[int, list[AdapterTarget]]:
    """Targets by the identity of their layer."""
    grouped: dict[int, list[AdapterTarget]] = {}
    for target in targets:
        grouped.setdefault(id(target.layer), []).append(target)
    return grouped


def _queries_and_values(model: Module, targets: Sequence[AdapterTarget]) -> list[AdapterTarget]:
    """The first and the last third of each attention's rows, or all of them as one."""
    grouped, chosen = by_layer(targets), set()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            maps = (module.q_proj, module.kv_proj) if module.has_memory else (module,)
            for each in maps:
                of_map = grouped.get(id(each), ())
                first = of_map[:1] if each is maps[0] else ()
                chosen |= {one.name for one in (*first, *of_map[-1:])}
    return [each for each in targets if each.name in chosen]


def _unknown(model: Module, name: object, targets: Sequence[AdapterTarget]) -> Exception:
    names = list(dict.fromkeys([each.name.rpartition(".")[2] for each in targets]))
    shown = f"{name!r} stands for" if name is not None else "by default queries and values are, and"
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    return refused(
        "LoraConfig", f"target_modules: {shown} no layer of this {type(model).__name__} "
        "that can be adapted",
        f"linear maps, attention and tables can: {', '.join(names[:12])}" if names
        else "linear maps, attention and tables can; there are none",
        f"give target_modules={near or names[:2]!r}; models.adaptable(model) has the whole names",
    )  # fmt: skip
