"""Functions of one value: their node types, and how often an activation is named."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynbatch
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError
from dynbatch.kernels.unary import FUNCTIONS
from dynbatch.nodes.unary import node_types
from tests.messages import raised

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
def test_an_activation_is_named_three_times_at_most_beside_its_definition(activation):
    """Once each: its node function, that function's export, and the link to its definition.

    Models, gated units, random graphs, other definitions and the rule of Φ use it besides.
    """
    found = [
        path.name
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.cu*"), *PACKAGE.rglob("*.[ch]")]
        if not {"models", "testing", "gated.py", "differentiation"} & {*path.parts}
        and path.parent not in (PACKAGE / "kernels" / "unary", PACKAGE / "kernels" / "losses")
        and mentions(path, activation)
        for name in names(path)
        if plain(name) == plain(activation)
    ]
    assert len(found) <= 3, found


def test_each_function_has_a_node_type_which_a_dump_finds_by_name():
    assert {*node_types.NODE_TYPES} == {*FUNCTIONS.values()}
    for function, node_type in node_types.NODE_TYPES.items():
        assert getattr(node_types, node_type.__name__) is node_type
        assert node_type.kernel is function and node_type.static == function.arguments
        assert node_type.__doc__


def test_a_function_of_the_user_has_its_own_signature_and_help():
    assert str(inspect.signature(F.gelu)) == "(x: 'Node', approximate: 'str' = 'none') -> 'Node'"
    assert all([inspect.getdoc(getattr(F, name)) for name in F.__all__])


def test_an_unknown_form_of_gelu_is_refused():
    with dynbatch.Graph() as graph:
        x = F.input(graph, [1.0])
        raised(ArgumentError, lambda: F.gelu(x, "new"), "a GELU: approximate is 'new'", "rule: ")
