"""ModernBERT: an encoder with rotary positions, gates, and layers that see a window alone.

    x_t = norm(word[id_t]);  in each layer  x ← x + attention(norm(x)), x ← x + W_o (f(a) ⊙ b) with
    [a; b] = W_i norm(x); the first layer's attention reads x as it is

Source: Warner et al. 2024, arXiv:2412.13663, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import size
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.models.initial import Rng, generator, normal, zeros
from dynbatch.models.layers import Dropout, Embedding, LayerNorm, Linear
from dynbatch.models.module import Module
from dynbatch.models.pretrained.activations import activation_of, gate_of
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.decoder import FULL, SLIDING, check_types
from dynbatch.models.pretrained.language import output_layer
from dynbatch.models.pretrained.model import PretrainedModel
from dynbatch.models.pretrained.positions import (
    refuse_settings,
    rope_parts,
    rotary_options_of_type,
)
from dynbatch.models.pretrained.table import Table
from dynbatch.models.transformer.feed_forward import ACTIVATIONS
from dynbatch.models.transformer.layers import LayerOptions
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.node import Node, Owner


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(ModelConfig):
    """Sizes and choices of a ModernBERT; the fields are those of config.json.

    Args:
        vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads: sizes.
        hidden_activation:  activation of the gate.
        norm_eps:           added to the variance.
        norm_bias, attention_bias, mlp_bias: whether norms, attention's maps and those of the
            feed-forward part have biases; decoder_bias and classifier_bias: the output and the map
            before it.
        classifier_activation: behind that map.
        layer_types:        "full_attention" or "sliding_attention" of each layer; if it is None,
            each third one, from the first on, sees all tokens, or as global_attn_every_n_layers
            says.
        local_attention:    tokens that others see, half of them on each side.
        global_rope_theta, local_rope_theta: bases of rotary frequencies of both kinds of layer;
            global_rope_scaling, local_rope_scaling how they are stretched. All are also read from
            the two parts of "rope_parameters".
        max_position_embeddings: tokens of the texts that it was trained on.
        embedding_dropout, mlp_dropout: dropout of embeddings and inside the feed-forward part.
        attention_dropout:  refused if it is not 0.
        tie_word_embeddings: whether the output is the table of words.
        initializer_range:  deviation of the tables' initial values.
    """

    model_types = ("modernbert",)

    vocab_size: int = 50368
    hidden_size: int = 768
    intermediate_size: int = 1152
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    layer_types: list[Any] | None = None
    local_attention: int = 128
    global_rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    global_rope_scaling: dict[str, Any] | None = None
    local_rope_scaling: dict[str, Any] | None = None
    embedding_dropout: float = 0.0
    mlp_dropout: float = 0.0
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02

    PARTS: ClassVar[Mapping[str, str]] = {FULL: "global", SLIDING: "local"}

    def __post_init__(self) -> None:
        others = dict(self.others)
        rope = others.pop("rope_parameters", None)
        object.__setattr__(self, "others", others)
        parts = rope_parts(type(self).__name__, {} if rope is None else rope, self.PARTS)
        for kind, side in self.PARTS.items():
            if (part := parts.get(kind)) is not None:
                theta = part.pop("rope_theta", getattr(self, f"{side}_rope_theta"))
                object.__setattr__(self, f"{side}_rope_theta", theta)
                object.__setattr__(self, f"{side}_rope_scaling", part)
            self.rotary(kind)
        check_types(self, self.layer_types)
        _ = self.period  # it is refused if it is no size
        refuse_settings(
            self, attention_dropout=(0, 0.0), rope_scaling=(None,),
            partial_rotary_factor=(None, 1.0),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with positions in the forms of all versions."""
        content = super().to_json()
        scalings = {kind: content.pop(f"{side}_rope_scaling") for kind, side in self.PARTS.items()}
        content["rope_parameters"] = {
            kind: {"rope_theta": content[f"{side}_rope_theta"], "rope_type": "default"}
            | (scalings[kind] or {})
            for kind, side in self.PARTS.items()
        }
        return content

    @property
    def period(self) -> int:
        """Each layer of so many, from the first on, sees all tokens."""
        name = "global_attn_every_n_layers"
        return size(type(self).__name__, name, self.others.get(name, 3))

    @property
    def biases(self) -> tuple[str, ...]:
        """The parts of a layer that have biases."""
        parts = {
            "qkv": self.attention_bias, "out": self.attention_bias, "feed_forward": self.mlp_bias,
            "norm": self.norm_bias,
        }  # fmt: skip
        return tuple([name for name, has_bias in parts.items() if has_bias])

    def type_of(self, layer: int) -> str:
        """The type of attention of a layer, 0 for the first."""
        if self.layer_types is not None:
            return str(self.layer_types[layer])
        return SLIDING if layer % self.period else FULL

    def rotary(self, layer_type: str) -> dict[str, Any]:
        """The arguments of `F.rotary` in layers of a type."""
        side = self.PARTS[layer_type]
        theta, scaling = [getattr(self, f"{side}_rope_{name}") for name in ("theta", "scaling")]
        return rotary_options_of_type(self, theta, scaling)


class ModernBertEmbeddings(Module):
    """norm(word[id]) of one sentence's tokens, T ids -> (T, D)."""

    def __init__(self, config: ModernBertConfig, rng: np.random.Generator) -> None:
        width, deviation = config.hidden_size, config.initializer_range
        self.word = Embedding(config.vocab_size, width, scale=deviation, rng=rng)
        self.norm = LayerNorm(width, config.norm_eps, bias=config.norm_bias)
        self.dropout = Dropout(config.embedding_dropout)

    @block
    def __call__(self, graph: Owner, ids: Array) -> Node:
        return self.dropout(self.norm(self.word(graph, ids)))


class ModernBert(PretrainedModel):
    """The encoder: `bert(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `ModernBertModel` in `transformers`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.
    """

    config_type = ModernBertConfig
    architecture = "ModernBertModel"
    prefix = "model."
    skipped: ClassVar[tuple[str, ...]] = ("head.**", "decoder.**", "classifier.**")
    saved_prefix: ClassVar[str] = ""

    def __init__(self, config: ModernBertConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config = config
        self.embeddings = ModernBertEmbeddings(config, rng)
        self.encoder = TransformerEncoder(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size, norm_first=True, eps=config.norm_eps, bias=config.biases,
            activation=gate_of("ModernBertConfig", config.hidden_activation), dropout=0.0,
            inner_dropout=config.mlp_dropout, each=self.options_of, rng=rng,
        )  # fmt: skip

    def options_of(self, layer: int) -> LayerOptions:
        """Options in which layers differ."""
        kind = self.config.type_of(layer)
        window = None if kind == FULL else self.config.local_attention // 2
        return {
            "window": window, "rotary": self.config.rotary(kind), "input_norm": layer > 0,
        }  # fmt: skip

    def __call__(self, graph: Owner, ids: ArrayLike) -> Node:
        """The last layer's values, normalised, (T, D)."""
        return self.encoder(self.embeddings(graph, as_ids("ModernBert", ids)))

    def vector(self, graph: Owner, ids: ArrayLike) -> Node:
        """A sentence's vector (D,): the mean of its tokens' last values."""
        return F.mean(self(graph, ids), dim=0)

    def table(self) -> Table:
        prefix = self.saved_prefix
        ours, theirs = "encoder.layers.*", f"{prefix}layers.*"
        return {
            "embeddings.word.weight": f"{prefix}embeddings.tok_embeddings.weight",
            "embeddings.norm.{}": f"{prefix}embeddings.norm.{{}}",
            f"{ours}.norm1.{{}}": f"{theirs}.attn_norm.{{}}",
            f"{ours}.self_attn.in_proj_{{}}": f"{theirs}.attn.Wqkv.{{}}",
            f"{ours}.self_attn.out_proj.{{}}": f"{theirs}.attn.Wo.{{}}",
            f"{ours}.norm2.{{}}": f"{theirs}.mlp_norm.{{}}",
            f"{ours}.linear1.{{}}": f"{theirs}.mlp.Wi.{{}}",
            f"{ours}.linear2.{{}}": f"{theirs}.mlp.Wo.{{}}",
            "encoder.norm.{}": f"{prefix}final_norm.{{}}",
        }


class ModernBertForMaskedWords(ModernBert):
    """ModernBERT with the head that fills in masked words, `ModernBertForMaskedLM`."""

    architecture = "ModernBertForMaskedLM"
    skipped = ("classifier.**",)
    saved_prefix = "model."

    def __init__(self, config: ModernBertConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        super().__init__(config, rng=rng)
        width, deviation = config.hidden_size, config.initializer_range
        self.transform = Linear.of(
            normal(rng, (width, width), deviation), zeros(width) if config.classifier_bias else None
        )
        self.transform_norm = LayerNorm(width, config.norm_eps, bias=config.norm_bias)
        word = self.embeddings.word
        self.output = output_layer(word, config.tie_word_embeddings, deviation, rng)
        self.bias = zeros(config.vocab_size) if config.decoder_bias else None
        name = activation_of("ModernBertConfig", config.classifier_activation)
        self.activation = ACTIVATIONS[name]

    def predict(self, hidden: Node) -> Node:
        """Logits of words for some rows of the last layer's values, (T, D) -> (T, V)."""
        x = self.transform_norm(self.activation(self.transform(hidden)))
        return self.output.adapted(x, F.linear(x, self.output.weight, self.bias))

    def logits(self, graph: Owner, ids: ArrayLike) -> Node:
        """(T, V) for the word at each token."""
        return self.predict(self(graph, ids))

    def loss(
        self, graph: Owner, ids: ArrayLike, targets: ArrayLike, reduction: str = "sum"
    ) -> Node:
        """Cross-entropy in nats at the tokens whose target is not negative.

        Args:
            targets:   the T words that were there, -100 where none is to be predicted.
            reduction: "sum", or "mean" over the predictions.
        """
        targets = as_ids("loss", targets)
        chosen = np.flatnonzero(targets >= 0)
        hidden = F.gather_rows(self(graph, ids), chosen)
        return F.cross_entropy(self.predict(hidden), targets[chosen], reduction=reduction)

    def tied(self) -> Mapping[str, str]:
        is_tied = self.config.tie_word_embeddings
        return {"decoder.weight": "model.embeddings.tok_embeddings.weight"} if is_tied else {}

    def table(self) -> Table:
        return {
            **super().table(),
            "transform.{}": "head.dense.{}",
            "transform_norm.{}": "head.norm.{}",
            "output.weight": "decoder.weight",
            "bias": "decoder.bias",
        }
