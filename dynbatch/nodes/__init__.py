"""Operations on the values of one sentence. `from dynbatch import nodes as F`."""

from dynbatch.nodes.cross_entropy import cross_entropy
from dynbatch.nodes.elementwise import (
    abs, add, clip, divide, elu, exp, expand, gelu, leaky_relu, log, multiply, negative, pow, relu,
    sigmoid, silu, softplus, sqrt, subtract, tanh,
)  # fmt: skip
from dynbatch.nodes.linear import affine, linear, matmul
from dynbatch.nodes.reduce import mean, sum
from dynbatch.nodes.sources import constant, input, lookup, parameter
from dynbatch.nodes.structure import concat
