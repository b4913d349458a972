"""Operations on the values of one sentence. `from dynbatch import nodes as F`."""

from typing import NoReturn

from dynbatch.nodes.arithmetic import add, divide, multiply, pow, subtract
from dynbatch.nodes.attention.additive import additive_attention
from dynbatch.nodes.attention.bias import alibi, feature_bias, relative_bias, t5_bias
from dynbatch.nodes.attention.dot_product import attention, general_attention
from dynbatch.nodes.attention.gated_delta_rule import gated_delta_rule
from dynbatch.nodes.dropout import dropout
from dynbatch.nodes.gated import geglu, glu, reglu, swiglu
from dynbatch.nodes.images.convolution import conv1d, conv2d
from dynbatch.nodes.images.pooling import avg_pool2d, max_pool2d
from dynbatch.nodes.images.transposed_convolution import conv_transpose2d
from dynbatch.nodes.layer_norm import layer_norm, rms_norm
from dynbatch.nodes.linear import affine, dot, linear, matmul
from dynbatch.nodes.losses.crf import crf, viterbi
from dynbatch.nodes.losses.cross_entropy import cross_entropy
from dynbatch.nodes.losses.ctc import ctc_loss
from dynbatch.nodes.losses.distance import (
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    l1_loss,
    multi_margin_loss,
)
from dynbatch.nodes.losses.elementwise import (
    binary_cross_entropy_with_logits,
    kl_div,
    mse_loss,
    nll_loss,
    poisson_nll_loss,
    soft_margin_loss,
)
from dynbatch.nodes.losses.pointer import pointer_loss
from dynbatch.nodes.losses.semi_crf import semi_crf, semi_viterbi
from dynbatch.nodes.matrix_vector import matvec, outer, vecmat
from dynbatch.nodes.norms import cosine_similarity, normalize
from dynbatch.nodes.positions.absolute import positions, sinusoidal
from dynbatch.nodes.positions.rotary import rotary
from dynbatch.nodes.reductions.extremum import argmax, max, min
from dynbatch.nodes.reductions.reduce import logsumexp, mean, sum
from dynbatch.nodes.reductions.segments import segment_mean, segment_sum
from dynbatch.nodes.reductions.statistics import cumsum, std, var
from dynbatch.nodes.selection import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    maximum,
    minimum,
    not_equal,
    where,
)
from dynbatch.nodes.shape.expand import expand
from dynbatch.nodes.shape.gather import gather_rows, repeat
from dynbatch.nodes.shape.indexing import pick, slice
from dynbatch.nodes.shape.join import concat, stack
from dynbatch.nodes.shape.kmax_pool import kmax_pool
from dynbatch.nodes.shape.permute import permute, transpose
from dynbatch.nodes.shape.reshape import reshape, squeeze, unsqueeze
from dynbatch.nodes.shape.split import chunk, split
from dynbatch.nodes.shape.structure import reverse
from dynbatch.nodes.shape.topk import topk
from dynbatch.nodes.shape.windows import max_pool, mean_pool, windows
from dynbatch.nodes.softmax import log_softmax, softmax, sparsemax
from dynbatch.nodes.sources import constant, input, lookup, parameter
from dynbatch.nodes.syntax.other_names import missing as _missing
from dynbatch.nodes.syntax.registry import FUNCTIONS
from dynbatch.nodes.unary.activations import *  # noqa: F403
from dynbatch.nodes.unary.activations import __all__  # type checkers follow it so
from dynbatch.nodes.unary.arithmetic import (
    abs,
    ceil,
    clamp,
    clip,
    detach,
    exp,
    floor,
    log,
    negative,
    round,
    sign,
    sqrt,
)
from dynbatch.nodes.unary.trigonometric import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    erf,
    sin,
    sinh,
    tan,
)

__all__ = [
    *__all__, "abs", "acos", "acosh", "add", "additive_attention", "affine", "alibi", "argmax",
    "asin", "asinh", "atan", "atanh", "attention", "avg_pool2d", "binary_cross_entropy_with_logits",
    "ceil", "chunk", "clamp", "clip", "concat", "constant", "conv1d", "conv2d", "conv_transpose2d",
    "cos", "cosh", "cosine_similarity", "crf", "cross_entropy", "ctc_loss", "cumsum", "detach",
    "divide", "dot", "dropout", "equal", "erf", "exp", "expand", "feature_bias", "floor",
    "gated_delta_rule", "gather_rows", "gaussian_nll_loss", "geglu", "general_attention", "glu",
    "greater", "greater_equal", "hinge_embedding_loss", "huber_loss",
    "input", "kl_div", "kmax_pool", "l1_loss", "layer_norm", "less", "less_equal", "linear", "log",
    "log_softmax", "logsumexp", "lookup", "matmul", "matvec", "max", "max_pool", "max_pool2d",
    "maximum", "mean", "mean_pool", "min", "minimum", "mse_loss", "multi_margin_loss", "multiply",
    "negative", "nll_loss", "normalize", "not_equal", "outer", "parameter", "permute", "pick",
    "pointer_loss", "poisson_nll_loss", "positions", "pow", "reglu", "relative_bias", "repeat",
    "reshape", "reverse", "rms_norm", "rotary", "round", "segment_mean", "segment_sum", "semi_crf",
    "semi_viterbi", "sign", "sin", "sinh", "sinusoidal", "slice", "soft_margin_loss",
    "softmax", "sparsemax", "split",
    "sqrt", "squeeze", "stack", "std", "subtract", "sum", "swiglu", "t5_bias", "tan", "topk",
    "transpose", "unsqueeze", "var", "vecmat", "viterbi", "where", "windows",
]  # fmt: skip

FUNCTIONS.update({name: globals()[name] for name in __all__})


def __getattr__(name: str) -> NoReturn:
    """Raise an error for a PyTorch name that `F` lacks; the message says what to write."""
    raise _missing(name)
