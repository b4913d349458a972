"""Llama: the plain decoder.

Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2; Grattafiori et al. 2024,
    arXiv:2407.21783, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynbatch.models.pretrained.decoder import CausalDecoder, DecoderConfig


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """Sizes and choices of a Llama; the fields are those of config.json.

    Args:
        hidden_act: activation of the gate, "silu" in published models.
        mlp_bias:   whether the maps of the feed-forward part have biases.

    All others are those of decoders: vocab_size, hidden_size, num_hidden_layers,
    num_attention_heads, num_key_value_heads, head_dim, intermediate_size, rms_norm_eps,
    max_position_embeddings, rope_theta, rope_scaling, attention_dropout, tie_word_embeddings,
    initializer_range, attention_bias.
    """

    model_types = ("llama",)

    hidden_act: str = "silu"
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[str, ...]:
        return (*super().biases, *(("feed_forward",) if self.mlp_bias else ()))


class Llama(CausalDecoder):
    """The language model: `llama(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `LlamaForCausalLM` in `transformers`. Each token sees itself and those before it.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained.llama import Llama, LlamaConfig
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> llama = Llama(LlamaConfig(vocab_size=10, intermediate_size=12, **sizes))
        >>> with db.Graph() as graph:
        ...     [llama.logits(graph, ids).value.shape for ids in ([3, 1, 2], [], [7])]
        [(3, 10), (0, 10), (1, 10)]
    """

    config_type = LlamaConfig
    architecture = "LlamaForCausalLM"
