"""`add_adapter` and what follows: a model gets LoRA's matrices, keeps or loses them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple, cast

from dynbatch.arguments import refused, shown
from dynbatch.models.adapter import Adaptable
from dynbatch.models.freezing import freeze
from dynbatch.models.initial import Rng, generator
from dynbatch.models.lora.config import LoraConfig
from dynbatch.models.lora.matrices import Lora, LoraOfMap, LoraOfTable
from dynbatch.models.lora.targets import (
    AdapterTarget,
    by_layer,
    chosen_targets,
    is_under,
    own_parameters,
)
from dynbatch.models.module import Module
from dynbatch.parameter import ModelBuffer, Parameter


def add_adapter(
    model: Module, config: LoraConfig | None = None, *, rng: Rng = None
) -> list[str]:  # fmt: skip
    """Freeze a model, and put LoRA's matrices beside the layers that a configuration names.

        y = x Wᵀ + b + (α / r) (x Aᵀ) Bᵀ,   A (r, I), B (O, r), at first 0

    They are parameters of the model, as others: checkpoints, `to` and `state_dict` have them, and
    an optimizer that is made afterwards. A layer is adapted where it is called; what a function of
    one's own computes with a layer's weight alone is not. As with all that a block reads, it holds
    from the next graph on.

    Args:
        config: ranks, layers and scales; `LoraConfig()` by default.
        rng:    generator or seed of the initial values.

    Returns:
        The names of the adapted layers.

    Raises:
        ArgumentError: a name stands for no layer, or the model has an adapter.

    Example:
        >>> from dynbatch import models
        >>> model = models.GPT(num_tokens=257, longest=64, width=16, layers=1, heads=2)
        >>> config = models.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "linear1"])
        >>> models.add_adapter(model, config)[:2]
        ['encoder.layers.0.self_attn.q_proj', 'encoder.layers.0.self_attn.v_proj']
        >>> sum([p.size for p in model.parameters() if not p.frozen]), model.num_parameters()
        (288, 8544)
    """
    config = LoraConfig() if config is None else config
    if not isinstance(config, LoraConfig):
        raise refused(
            "add_adapter", f"config is {shown(config)}", "a LoraConfig",
            'models.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])',
        )  # fmt: skip
    targets = chosen_targets(model, config, is_strict=True)
    attach(model, prepared(model, config, targets, rng))
    return [target.name for target in targets]


class Prepared(NamedTuple):
    """An adapter that is not at its layers yet.

    Attributes:
        adapters: with the layer of each.
        trained:  the model's own parameters that will be trained.
    """

    adapters: list[tuple[Adaptable, Lora]]
    trained: dict[str, Parameter]


def prepared(
    model: Module, config: LoraConfig, targets: list[AdapterTarget], rng: Rng = None
) -> Prepared:
    """The matrices beside the targets, made; the model is not changed.

    Raises:
        ArgumentError: the model has an adapter; or names of `modules_to_save`, or biases, cannot be
            trained.
    """
    if any(True for _ in adapted_layers(model)):
        raise refused(
            "add_adapter", f"this {type(model).__name__} has an adapter",
            "a model has one at a time",
            "models.remove_adapter(model) first; models.merge_adapter before keeps its change",
        )  # fmt: skip
    trained = trained_whole(model, config, {target.name for target in targets})
    rng, adapters = generator(rng), []
    for of_layer in by_layer(targets).values():
        parts = {
            target.name.rpartition(".")[2]: (LoraOfTable if target.is_table else LoraOfMap)(
                target, config, rng
            )
            for target in of_layer
        }
        layer, weight = of_layer[0].layer, of_layer[0].weight
        adapters.append((layer, Lora(parts, weight.shape[0], config).train(layer.training)))
    return Prepared(adapters, trained)


def attach(model: Module, adapter: Prepared) -> None:
    """Put the matrices at their layers, and freeze what is not trained."""
    for layer, each in adapter.adapters:
        each.to(_weight(layer).device)
    freeze(model)
    for parameter in adapter.trained.values():
        parameter.frozen = False
    for layer, each in adapter.adapters:
        layer.adapter = each


def merge_adapter(model: Module) -> None:
    """Add the matrices to the weights: W ← W + (α / r) B A. The model then costs what it did.

    Until `unmerge_adapter` it lists its first parameters alone, so that `save_pretrained` writes a
    plain model. The weights from before are kept on the host meanwhile, and unmerging gives them
    back to the bit; `remove_adapter` keeps the merged ones, and forgets those.

    Raises:
        ArgumentError: it has no adapter, or is merged; a weight lies in 16 bits; or a table that
            the adapter changes is also the output's matrix, which must not change.
    """
    layers = _layers("merge_adapter", model, is_merged=False)
    shared = shared_parameters(model)
    for layer in layers:
        weight = _weight(layer)
        if weight.is_short:
            raise refused(
                "merge_adapter", f"{weight.name!r} lies in 16 bits",
                "the sum of weight and change would be rounded to them",
                'model.astype("float32") first',
            )  # fmt: skip
        if weight.uid in shared:
            raise refused(
                "merge_adapter", f"{weight.name!r} is the weight of several layers, and the "
                "adapter changes one of them",
                "merging writes into a weight, which all of its layers read",
                "keep the adapter beside it: models.pretrained.save_adapter(model, folder)",
            )  # fmt: skip
    for layer in layers:
        _lora(layer).merge(_weight(layer))


def shared_parameters(model: Module) -> set[int]:
    """The parameters that several layers have, by `uid`."""
    layers: dict[int, set[int]] = {}
    for layer in model.modules():
        for _, member in layer._members():
            if isinstance(member, Parameter):
                layers.setdefault(member.uid, set()).add(id(layer))
    return {uid for uid, of_parameter in layers.items() if len(of_parameter) > 1}


def unmerge_adapter(model: Module) -> None:
    """Give the weights their values from before `merge_adapter`, to the bit.

    What else was written into these weights meanwhile is lost.

    Raises:
        ArgumentError: the model has no adapter, or it is not merged.
    """
    for layer in _layers("unmerge_adapter", model, is_merged=True):
        _lora(layer).unmerge(_weight(layer))


def remove_adapter(model: Module) -> None:
    """Take the matrices away: the model is the one from before, or, if they are merged, the merged.

    Its parameters stay frozen: `models.unfreeze(model)` trains them again.

    Raises:
        ArgumentError: it has no adapter.
    """
    for layer in _layers("remove_adapter", model, is_merged=None):
        layer.adapter = None


def adapted_layers(model: Module) -> Iterator[Adaptable]:
    """The layers that have an adapter."""
    for module in model.modules():
        if isinstance(module, Adaptable) and module.adapter is not None:
            yield module


def adapters_of(model: Module) -> list[Lora]:
    """The adapters of a model's layers."""
    return [_lora(layer) for layer in adapted_layers(model)]


def trained_whole(
    model: Module, config: LoraConfig, adapted: Container[str]
) -> dict[str, Parameter]:  # fmt: skip
    """The model's own parameters that are trained beside the matrices, by their names.

    Args:
        adapted: names of layers.

    Raises:
        ArgumentError: `modules_to_save` means none, or it or `bias` a part of a parameter.
    """
    trained: dict[str, Parameter] = {}
    saves, is_saved = config.saves(), False
    for name, parameter, tensors in own_parameters(model):
        layers, last = zip(*[tensor.rpartition(".")[::2] for tensor, _ in tensors], strict=True)
        meant = [is_under(saves, layer) for layer in layers]
        is_saved |= all(meant)
        if config.bias == "lora_only" and last[0] == "bias":
            meant = [x or layer in adapted for x, layer in zip(meant, layers, strict=True)]
        elif config.bias == "all" and "bias" in tensors[0][0]:
            meant = meant if isinstance(parameter, ModelBuffer) else [True]
        if any(meant) and not all(meant):
            raise refused(
                "LoraConfig", f"{', '.join(layers)} are rows of one parameter here, {name!r}, of "
                "which some are to be trained",
                "a parameter is trained or frozen as a whole",
                "name all of these layers, or none; or bias='none'",
            )  # fmt: skip
        if all(meant):
            trained[name] = parameter
    if config.modules_to_save and not is_saved:
        raise refused(
            "LoraConfig", f"modules_to_save: {list(config.modules_to_save)!r} stands for no layer "
            f"of this {type(model).__name__}",
            "names of layers, as in files, or their ends", "print(model) shows the layers",
        )  # fmt: skip
    return trained


def _layers(owner: str, model: Module, is_merged: bool | None) -> list[Adaptable]:
    """The adapted layers, if they are merged or not, as wanted."""
    layers = [*adapted_layers(model)]
    if not layers:
        raise refused(
            owner, f"this {type(model).__name__} has no adapter", "an adapter is added first",
            "models.add_adapter(model, models.LoraConfig(...)), or models.pretrained.load_adapter",
        )  # fmt: skip
    if is_merged is not None and _lora(layers[0]).is_merged != is_merged:
        raise refused(
            owner, f"its adapter is {'not ' * is_merged}merged",
            "an adapter is merged once, and unmerged after that",
            f"models.{'' if is_merged else 'un'}merge_adapter(model) first",
        )  # fmt: skip
    return layers


def _lora(layer: Adaptable) -> Lora:
    return cast(Lora, layer.adapter)


def _weight(layer: Adaptable) -> Parameter:
    weight: Parameter = getattr(layer, layer.adapted_weight)
    return weight
