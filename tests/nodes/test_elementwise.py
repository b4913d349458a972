"""Where the name of an activation stands, and how often."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynbatch

PACKAGE = Path(dynbatch.__file__).parent


def names(path: Path) -> Iterator[str]:
    """Identifiers of a source file, and texts that are one, as in `__all__`; no prose."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"\w+", re.sub(r"//.*", "", text))
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type == tokenize.STRING and re.fullmatch(r"[\"']\w+[\"']", token.string):
            yield ast.literal_eval(token.string)


def mentions(path: Path, word: str) -> bool:
    return plain(word) in plain(path.read_text())


def plain(name: str) -> str:
    """One spelling for LeakyRelu, leaky_relu and _leaky_relu_backward."""
    return name.replace("_", "").lower().removesuffix("backward")


@pytest.mark.parametrize(
    "activation", ["elu", "gelu", "leaky_relu", "log_sigmoid", "silu", "softplus"]
)
def test_an_activation_is_named_four_times_at_most(activation):
    """Once each: its function, its node function, that function's export, and the link of them.

    Models and random graphs use it besides.
    """
    found = [
        path.name
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.cu")]
        if not {"models", "testing"} & {*path.parts} and mentions(path, activation)
        for name in names(path)
        if plain(name) == plain(activation)
    ]
    assert len(found) <= 4, found
