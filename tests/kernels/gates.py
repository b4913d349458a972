"""The functions that a gated unit may have, with their static arguments."""

import pytest

from dynbatch.kernels.unary import activations

GATES = [
    (activations.sigmoid, ()),
    (activations.silu, ()),
    (activations.relu, ()),
    (activations.gelu, ("none",)),
    (activations.gelu, ("tanh",)),
]

of_each_function = pytest.mark.parametrize(
    "function", GATES, ids=["_".join([gate.name, *words]) for gate, words in GATES]
)
