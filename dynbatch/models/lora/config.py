"""`LoraConfig`: what is adapted, and by matrices of which rank. The fields are PEFT's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dynbatch.arguments import number, refused, shown, size, switch
from dynbatch.models.lora.patterns import Unbounded, is_full_match
from dynbatch.names import NamesChecked

ALL_LINEAR = "all-linear"
INITIAL = (True, False, "gaussian")
BIASES = ("none", "all", "lora_only")
HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score")}
"""The layers of a model of a task that are new, and so trained whole."""
_ENDS = r"(.*\.)?({})"  # a name whose end is meant


@dataclass(frozen=True, kw_only=True)
class LoraConfig(NamesChecked):
    """Settings of `add_adapter`; names and defaults are PEFT's.

    A layer is meant by the name that it has in PEFT: that of the module in `transformers` where the
    model is one of `models.pretrained`, such as "model.layers.0.self_attn.q_proj", else its path in
    the model. `models.adaptable(model)` lists them.

    Args:
        r:                 rank of the matrices.
        lora_alpha:        α; what they add is multiplied by α / r.
        lora_dropout:      on what they read, while training; tables have none.
        target_modules:    names, or their ends: ["q_proj", "v_proj"] are those of all layers; one
                           text is a regular expression for the whole name; "all-linear" is every
                           linear map but the output. None: queries and values of attention.
        exclude_modules:   names, their ends or a regular expression of layers to leave out.
        use_rslora:        multiply by α / √r instead, which keeps large ranks apart from it.
        bias:              biases to train: "none", "all", or "lora_only", those of adapted layers.
        modules_to_save:   names, or ends, of layers that are trained whole and written with the
                           adapter. Heads of `task_type` "SEQ_CLS" and "TOKEN_CLS" are among them.
        init_lora_weights: True: what the matrices add is 0 at first, A uniform in ±1/√I;
                           "gaussian": A normal, of deviation 1/r; False: B at random as well.
        rank_pattern, alpha_pattern: r and α of the layers whose name ends as a key, a regular
                           expression, says.
        task_type:         such as "CAUSAL_LM", or None.
        base_model_name_or_path: where the model is from; written for those who load the adapter.

    Raises:
        ArgumentError: a setting is not one of these, or PEFT has it and it is not supported here.

    Source: Hu et al. 2021, arXiv:2106.09685; α / √r Kalajdzievski 2023, arXiv:2312.03732.
    """

    r: int = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    target_modules: Sequence[str] | str | None = None
    exclude_modules: Sequence[str] | str | None = None
    use_rslora: bool = False
    bias: str = "none"
    modules_to_save: Sequence[str] | None = None
    init_lora_weights: bool | str = True
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    task_type: str | None = None
    base_model_name_or_path: str | None = None

    def __post_init__(self) -> None:
        size(self, "r", self.r)
        number(self, "lora_alpha", self.lora_alpha, "(0, inf)")
        number(self, "lora_dropout", self.lora_dropout, "[0, 1]")
        switch(self, "use_rslora", self.use_rslora)
        for name, known in (("bias", BIASES), ("init_lora_weights", INITIAL)):
            if (value := getattr(self, name)) not in known:
                raise refused(
                    "LoraConfig", f"{name} is {value!r:.60}",
                    f"one of {', '.join(map(repr, known))}", "choose one of these",
                )  # fmt: skip
        for name in ("target_modules", "exclude_modules", "modules_to_save"):
            value = getattr(self, name)
            if not (_is_names(value) or (isinstance(value, str) and name != "modules_to_save")):
                raise refused(
                    "LoraConfig", f"{name} is {shown(value)}", "a list of names of layers",
                    f'give {name}=["query", "value"]',
                )  # fmt: skip
        for key, rank in self.rank_pattern.items():
            size(self, f"rank_pattern[{key!r}]", rank)
        for key, alpha in self.alpha_pattern.items():
            number(self, f"alpha_pattern[{key!r}]", alpha, "(0, inf)")
        for pattern in (self.target_modules, self.exclude_modules):
            if isinstance(pattern, str):
                _stands_for(pattern, "")
        for pattern in (*self.rank_pattern, *self.alpha_pattern):
            _stands_for(pattern, "", _ENDS)

    def saves(self) -> tuple[str, ...]:
        """The names of the layers that are trained whole."""
        return tuple(
            dict.fromkeys([*(self.modules_to_save or ()), *HEADS.get(str(self.task_type), ())])
        )

    def rank(self, name: str) -> int:
        """The rank of the matrices of a layer."""
        return int(_by_pattern(self.rank_pattern, name, self.r))

    def scale(self, name: str) -> float:
        """The number by which the sum that a layer's matrices add is multiplied."""
        rank = self.rank(name)
        return _by_pattern(self.alpha_pattern, name, self.lora_alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )


def is_meant(names: Sequence[str] | str | None, name: str) -> bool:
    """Whether a layer is meant by names, by their ends, or by a regular expression."""
    if isinstance(names, str):
        return _stands_for(names, name)
    return any([name == each or name.endswith(f".{each}") for each in names or ()])


def _by_pattern(patterns: Mapping[str, float], name: str, usual: float) -> float:
    for pattern, value in patterns.items():
        if _stands_for(pattern, name, _ENDS):
            return value
    return usual


def _is_names(value: object) -> bool:
    is_list = isinstance(value, list | tuple | set | frozenset)
    return value is None or (is_list and all([isinstance(one, str) for one in value]))  # type: ignore[attr-defined]


def _stands_for(pattern: str, name: str, form: str = "{}") -> bool:
    """Whether a regular expression, put into a form, stands for a name.

    Raises:
        ArgumentError: it is none, or one that is not matched in bounded time.
    """
    try:
        re.compile(pattern)
        return is_full_match(form.format(pattern), name)
    except (re.error, OverflowError, RecursionError, Unbounded) as error:
        raise refused(
            "LoraConfig", f"{pattern!r:.60} is not a regular expression for names ({error})",
            "one text is a regular expression for a layer's whole name",
            f"give a list, [{pattern!r:.60}], for a name or its end",
        ) from None  # fmt: skip
