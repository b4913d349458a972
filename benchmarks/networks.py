"""The networks that every side builds: their sizes, and one set of initial values for all.

Values are named and laid out as PyTorch's state dicts are; dynbatch and DyNet convert them. An
LSTM's recurrent bias is left out (zero, and trained by nobody): it adds nothing to the bias of the
input, and DyNet has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LEARNING_RATE = 1e-3  # of Adam, betas (0.9, 0.999), eps 1e-8, no weight decay
START_SYMBOL = 0  # what the decoder reads before the first target word
END_SYMBOL = 1  # the last target word of every sentence

WINDOWS = (3, 4, 5)  # words in the windows of a convolutional network

_INITIAL_RANGE = 0.08  # uniform in ±0.08


@dataclass(frozen=True)
class TaggerSizes:
    """Embedding, bi-LSTM, linear layer: one tag for each word."""

    vocabulary: int = 10_000
    embedding: int = 128
    hidden: int = 256  # a direction
    tags: int = 45

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        return {
            "embedding.weight": (self.vocabulary, self.embedding),
            **_lstm_shapes("encoder.", self.embedding, self.hidden),
            "output.weight": (self.tags, 2 * self.hidden),
            "output.bias": (self.tags,),
        }


@dataclass(frozen=True)
class Seq2SeqSizes:
    """bi-LSTM encoder, LSTM decoder with additive attention and input feeding (Luong et al. 2015).

    With memory m_s (512) of the encoder, and target embedding e_t, the decoder's step is
        h_t, c_t = LSTM([e_t; f_{t-1}], (h_{t-1}, c_{t-1})),   f_0 = h_0 = c_0 = 0
        a_ts     = softmax_s(v · tanh(W_key m_s + W_query h_t))
        f_t      = tanh(Σ_s a_ts (W_context m_s) + W_state h_t)
    and the logits are W_output f_t + b. Dropout is 0. W_context is applied to the memory once, not
    to each step's context, by everybody: the same function for less work.
    """

    source_vocabulary: int = 8_000
    target_vocabulary: int = 8_000
    embedding: int = 256  # both sides
    hidden: int = 256  # a direction of the encoder; decoder, attention and feed alike

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        hidden = self.hidden
        return {
            "source_embedding.weight": (self.source_vocabulary, self.embedding),
            "target_embedding.weight": (self.target_vocabulary, self.embedding),
            **_lstm_shapes("encoder.", self.embedding, hidden),
            "cells.0.weight_ih": (4 * hidden, self.embedding + hidden),
            "cells.0.weight_hh": (4 * hidden, hidden),
            "cells.0.bias_ih": (4 * hidden,),
            "key.weight": (hidden, 2 * hidden),
            "query.weight": (hidden, hidden),
            "score": (hidden,),
            "context.weight": (hidden, 2 * hidden),
            "state.weight": (hidden, hidden),
            "output.weight": (self.target_vocabulary, hidden),
            "output.bias": (self.target_vocabulary,),
        }


@dataclass(frozen=True)
class TreeSizes:
    """Binary Tree-LSTM (Tai, Socher & Manning 2015, equations 9 to 14, N = 2), a class a node.

    A word's node has embedding e; an inner node has children l and r, each a forget gate:
        i, o, u           = W_leaf e + b_leaf                    c = σ(i) ⊙ tanh(u)
        i, o, f_l, f_r, u = W_compose [h_l; h_r] + b_compose     c = σ(i) ⊙ tanh(u) + σ(f_l) ⊙ c_l
                                                                     + σ(f_r) ⊙ c_r
    and of both h = σ(o) ⊙ tanh(c), with logits W_output h + b. Dropout is 0.

    Source: arXiv:1503.00075.
    """

    vocabulary: int = 10_000
    embedding: int = 300
    hidden: int = 150
    classes: int = 5

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        hidden = self.hidden
        return {
            "embedding.weight": (self.vocabulary, self.embedding),
            "leaf.weight": (3 * hidden, self.embedding),
            "leaf.bias": (3 * hidden,),
            "compose.weight": (5 * hidden, 2 * hidden),
            "compose.bias": (5 * hidden,),
            "output.weight": (self.classes, hidden),
            "output.bias": (self.classes,),
        }


@dataclass(frozen=True)
class TransformerSizes:
    """Decoder-only Transformer, normalised before each part (GPT-2): the next word at each word.

    With e_t the sum of word and position embedding, x = e, and in each of the layers
        x <- x + W_out concat_h(softmax(Q_h K_hᵀ / √d_h + causal mask) V_h),  [Q K V] = W_in norm(x)
        x <- x + W_2 gelu(W_1 norm(x))
    and the logits are W_output norm(x) + b. Biases everywhere. Dropout is 0.

    Source: Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3.
    """

    vocabulary: int = 8_000
    hidden: int = 256
    inner: int = 1024
    heads: int = 4
    layers: int = 4
    longest: int = 80

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        hidden = self.hidden
        return {
            "word.weight": (self.vocabulary, hidden),
            "position.weight": (self.longest, hidden),
            **_layer_shapes(self.layers, hidden, self.inner),
            "encoder.norm.weight": (hidden,),
            "encoder.norm.bias": (hidden,),
            "output.weight": (self.vocabulary, hidden),
            "output.bias": (self.vocabulary,),
        }


@dataclass(frozen=True)
class BertLayerSizes:
    """A layer of BERT-base, normalised after each part, between word vectors and a tag a word.

    With x the word's vector, and A attention as in `TransformerSizes`, over the whole sentence:
        x <- norm(x + A(x)),  x <- norm(x + W_2 gelu(W_1 x))
    and the logits are W_output x + b. Positions are left out; dropout is 0.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.
    """

    vocabulary: int = 1_000
    hidden: int = 768
    inner: int = 3072
    heads: int = 12
    layers: int = 1
    tags: int = 45

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        return {
            "word.weight": (self.vocabulary, self.hidden),
            **_layer_shapes(self.layers, self.hidden, self.inner),
            "output.weight": (self.tags, self.hidden),
            "output.bias": (self.tags,),
        }


@dataclass(frozen=True)
class CnnSizes:
    """Convolutions over words, the strongest answer of each filter, a class for the sentence:

        y = W [max_t relu(W_s [x_t; …; x_t+s-1] + b_s) for s = 3, 4, 5] + b

    Windows reach over both ends, where word vectors are zeros. Dropout is 0.

    Source: Kim 2014, arXiv:1408.5882.
    """

    vocabulary: int = 10_000
    embedding: int = 300
    hidden: int = 100  # filters of each window size
    classes: int = 5

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocabulary, self.embedding)}
        for k, words in enumerate(WINDOWS):
            shapes[f"convolutions.{k}.weight"] = (self.hidden, self.embedding, words)
            shapes[f"convolutions.{k}.bias"] = (self.hidden,)
        shapes["output.weight"] = (self.classes, len(WINDOWS) * self.hidden)
        shapes["output.bias"] = (self.classes,)
        return shapes


Sizes = TaggerSizes | Seq2SeqSizes | TreeSizes | TransformerSizes | BertLayerSizes | CnnSizes


def initial_values(sizes: Sizes, rng: np.random.Generator) -> Mapping[str, Array]:
    """float32 values for every parameter, uniform in ±0.08; around 1 for a norm's weight."""
    return {
        name: (
            float("norm" in name and name.endswith("weight"))
            + rng.uniform(-_INITIAL_RANGE, _INITIAL_RANGE, shape)
        ).astype(np.float32)
        for name, shape in sizes.shapes().items()
    }


def _lstm_shapes(prefix: str, inputs: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """One bidirectional layer; the rows of a weight are the gates i, f, g, o."""
    return {
        f"{prefix}{name}_l0{direction}": shape
        for direction in ("", "_reverse")
        for name, shape in (
            ("weight_ih", (4 * hidden, inputs)),
            ("weight_hh", (4 * hidden, hidden)),
            ("bias_ih", (4 * hidden,)),
        )
    }


def _layer_shapes(layers: int, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The layers of a Transformer; the rows of `in_proj_weight` are queries, keys and values."""
    shapes: dict[str, tuple[int, ...]] = {}
    maps = {"self_attn.in_proj_": (3 * hidden, hidden), "self_attn.out_proj.": (hidden, hidden)}
    maps |= {"linear1.": (inner, hidden), "linear2.": (hidden, inner)}
    for k in range(layers):
        for name, shape in maps.items():
            shapes[f"encoder.layers.{k}.{name}weight"] = shape
            shapes[f"encoder.layers.{k}.{name}bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes[f"encoder.layers.{k}.{name}.weight"] = (hidden,)
            shapes[f"encoder.layers.{k}.{name}.bias"] = (hidden,)
    return shapes
