"""Static arguments of the functions of one value, by the arguments' names."""

import math
from typing import Any

from dynbatch.kernels.unary import FUNCTIONS, Argument, Function

CHOICES: dict[str, tuple[Argument, ...]] = {
    "exponent": (3.0, 2.0, 1.0, 0.0, -1.0, -2.0, 0.5, -0.5, 2.5),
    "low": (-2.0, -math.inf),
    "high": (3.0, 0.5),
    "slope": (0.25,),
    "alpha": (0.25,),
    "approximate": ("none", "tanh"),
}


def choices(function: Function) -> list[tuple[Any, ...]]:
    """Several static arguments of a function, so that between them each formula runs."""
    values = [CHOICES[name] for name in function.arguments]
    return [*zip(*values, strict=True)] if values else [()]


EVERY_CHOICE = [(f, arguments) for f in FUNCTIONS.values() for arguments in choices(f)]


def name_of(function: Function, arguments: tuple[Any, ...]) -> str:
    return "_".join([function.name, *map(str, arguments)])


EVERY_NAME = [name_of(*choice) for choice in EVERY_CHOICE]
