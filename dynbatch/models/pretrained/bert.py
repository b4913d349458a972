"""BERT: an encoder of whole sentences, trained to fill in masked words.

    x_t = norm(word[id_t] + position[t] + type[type_t]);   layers, each part post-norm:
    x ← norm(x + attention(x)), x ← norm(x + W_2 gelu(W_1 x))

Source: Devlin et al. 2019, arXiv:1810.04805, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import refused, shown
from dynbatch.backend import Array
from dynbatch.blocks.block import block
from dynbatch.errors import VocabularyError
from dynbatch.models.initial import Rng, generator
from dynbatch.models.layers import Dropout, Embedding, LayerNorm, Linear
from dynbatch.models.module import Module
from dynbatch.models.pretrained.activations import activation_of
from dynbatch.models.pretrained.config import ModelConfig
from dynbatch.models.pretrained.model import PretrainedModel
from dynbatch.models.pretrained.table import Table, joined
from dynbatch.models.transformer.stacks import TransformerEncoder
from dynbatch.nodes.arguments import as_ids
from dynbatch.nodes.attention.bias import DistanceBias
from dynbatch.nodes.node import Node, Owner


@dataclass(frozen=True, kw_only=True)
class BertConfig(ModelConfig):
    """Sizes and choices of a BERT; the fields are those of config.json.

    Args:
        vocab_size:              ids.
        hidden_size:             features D.
        num_hidden_layers, num_attention_heads: layers, and heads in each.
        intermediate_size:       features inside the feed-forward part.
        max_position_embeddings: the longest sentence.
        type_vocab_size:         types of tokens: 0 in a first sentence, 1 in a second.
        hidden_act:              "gelu", "gelu_new", "relu" or "silu".
        hidden_dropout_prob, attention_probs_dropout_prob: dropout of what each part adds, and of
            attention's weights.
        classifier_dropout:      dropout before a classifier; hidden_dropout_prob if it is None.
        layer_norm_eps:          added to the variance.
        initializer_range:       deviation of the tables' initial values.
        tie_word_embeddings:     whether the output of masked words is the table of words.
        id2label:                names of the classes, by number, such as dict(enumerate(names));
                                 None for two classes. `labels` lists them.
        position_embedding_type: "absolute"; other types are refused.
    """

    model_types: ClassVar[tuple[str, ...]] = ("bert",)

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    id2label: dict[str, Any] | None = None
    position_embedding_type: str = "absolute"
    is_decoder: bool = False

    def __post_init__(self) -> None:
        names = self.id2label
        is_numbered = isinstance(names, dict) and all([str(key).isdecimal() for key in names])
        if names is not None and not is_numbered:
            raise refused(
                type(self).__name__, f"id2label is {shown(names)}",
                "the name of each class by its number", "give id2label=dict(enumerate(names))",
            )  # fmt: skip
        if self.position_embedding_type != "absolute" or self.is_decoder:
            raise refused(
                type(self).__name__, "relative positions, or a decoder, are asked for",
                "position_embedding_type is 'absolute', is_decoder False",
                "choose a checkpoint of an encoder with absolute positions",
            )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The object for config.json, with label2id, which is id2label the other way round."""
        numbers = {str(name): int(number) for number, name in (self.id2label or {}).items()}
        return super().to_json() | ({"label2id": numbers} if numbers else {})

    @property
    def has_types(self) -> bool:
        """Whether tokens have types."""
        return True

    @property
    def first_position(self) -> int:
        """The row of the table of positions for a sentence's first token."""
        return 0

    @property
    def labels(self) -> list[str]:
        """Names of a classifier's classes, in the order of their scores."""
        names = {"0": "LABEL_0", "1": "LABEL_1"} if self.id2label is None else self.id2label
        return [str(names[key]) for key in sorted(names, key=int)]

    @property
    def num_labels(self) -> int:
        """Classes of a classifier."""
        return 2 if self.id2label is None else len(self.id2label)

    @property
    def dropout_of_classifier(self) -> float:
        """Dropout before a classifier."""
        dropout = self.classifier_dropout
        return self.hidden_dropout_prob if dropout is None else dropout


class LayerNames(NamedTuple):
    """Names of a layer's parts in a family's files; the first is that of the layers."""

    layers: str = "encoder.layer"
    qkv: tuple[str, str, str] = (
        "attention.self.query", "attention.self.key", "attention.self.value",
    )  # fmt: skip
    out: str = "attention.output.dense"
    norm1: str = "attention.output.LayerNorm"
    linear1: str = "intermediate.dense"
    linear2: str = "output.dense"
    norm2: str = "output.LayerNorm"


class BertEmbeddings(Module):
    """norm(word[id] + position[t] + type[type]) of one sentence's tokens, T ids -> (T, D)."""

    def __init__(self, config: BertConfig, rng: np.random.Generator) -> None:
        size, scale = config.hidden_size, config.initializer_range
        self.word = Embedding(config.vocab_size, size, scale=scale, rng=rng)
        self.position = Embedding(config.max_position_embeddings, size, scale=scale, rng=rng)
        self.token_type = None
        if config.has_types:
            self.token_type = Embedding(config.type_vocab_size, size, scale=scale, rng=rng)
        self.norm = LayerNorm(size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.first_position = config.first_position

    @block
    def __call__(self, graph: Owner, ids: Array, types: Array) -> Node:
        x = self.word(graph, ids)
        x = x + self.position.positions(x, self.first_position)
        x = x if self.token_type is None else x + self.token_type(graph, types)
        return self.dropout(self.norm(x))


class Bert(PretrainedModel):
    """The encoder: `bert(graph, ids)` is the last layer's values, T ids -> (T, D).

    It is `BertModel` in `transformers`. A checkpoint without a pooler loads with
    `new=["pooler.{}"]`.

    Args:
        config: its sizes.
        rng:    generator or seed of the initial values.

    Raises:
        ArgumentError: sizes do not fit, or the configuration asks for a variant that is not here.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained.bert import Bert, BertConfig
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> bert = Bert(BertConfig(vocab_size=10, intermediate_size=12, **sizes)).eval()
        >>> with db.Graph() as graph:
        ...     [bert(graph, ids).value.shape for ids in ([3, 1, 2], [], [7])]
        [(3, 8), (0, 8), (1, 8)]
    """

    config_type = BertConfig
    architecture = "BertModel"
    prefix = "bert."
    skipped: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "cls.**", "classifier.**")
    has_pooler = True
    layer_names: ClassVar[LayerNames] = LayerNames()

    def __init__(self, config: BertConfig, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.config = config
        self.embeddings = BertEmbeddings(config, rng)
        self.encoder = TransformerEncoder(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size, dropout=config.hidden_dropout_prob, inner_dropout=0.0,
            attention_dropout=config.attention_probs_dropout_prob,
            activation=activation_of("BertConfig", config.hidden_act), eps=config.layer_norm_eps,
            position_bias=self.position_bias(config, rng), rng=rng,
        )  # fmt: skip
        if self.has_pooler:
            self.pooler = Linear(config.hidden_size, config.hidden_size, rng=rng)

    def __call__(self, graph: Owner, ids: ArrayLike, types: ArrayLike | None = None) -> Node:
        """The last layer's values, (T, D).

        Args:
            ids:   of the T tokens, with [CLS] and [SEP] if the tokenizer has them.
            types: of the tokens; 0 by default.

        Raises:
            VocabularyError: there are more tokens than `positions`.
        """
        ids = as_ids("Bert", ids)
        if len(ids) > self.positions:
            raise VocabularyError.at_caller(
                f"{type(self).__name__}: {len(ids)} tokens.\n"
                f"  rule: at most {self.positions}, as many as the model has positions\n"
                "  fix:  give a part of the text; its beginning and what the tokenizer puts at the "
                f"end: [*ids[:{self.positions - 1}], ids[-1]]"
            )
        if types is not None and not self.config.has_types:
            raise refused(
                type(self).__name__, "called with types of tokens", "the model has none",
                "leave types out",
            )  # fmt: skip
        types = np.zeros_like(ids) if types is None else as_ids("Bert", types)
        return self.encoder(self.embeddings(graph, ids, types))

    def position_bias(self, config: Any, rng: np.random.Generator) -> DistanceBias | None:
        """The bias of scores by distance, if the family has one."""
        return None

    @property
    def positions(self) -> int:
        """Most tokens of a text, those that the tokenizer puts around it among them."""
        return int(self.config.max_position_embeddings - self.config.first_position)

    def pooled(self, hidden: Node) -> Node:
        """tanh(W h + b) of the first token's h, (T, D) -> (D,)."""
        return F.tanh(self.pooler(hidden[0]))

    def vector(self, graph: Owner, ids: ArrayLike, types: ArrayLike | None = None) -> Node:
        """A sentence's vector (D,): the mean of its tokens' last values, as Sentence-BERT's.

        Source: Reimers & Gurevych 2019, arXiv:1908.10084, section 3.
        """
        return F.mean(self(graph, ids, types), dim=0)

    def table(self) -> Table:
        return self.encoder_table("", "pooler.dense.{}" if self.has_pooler else None)

    def encoder_table(self, prefix: str, pooler: str | None = None) -> Table:
        """Names of the encoder in files where they begin with `prefix`, and of the pooler."""
        names = self.layer_names
        ours, theirs = "encoder.layers.*", f"{prefix}{names.layers}.*"
        words = f"{prefix}embeddings"
        return {
            "embeddings.word.weight": f"{words}.word_embeddings.weight",
            "embeddings.position.weight": f"{words}.position_embeddings.weight",
            "embeddings.token_type.weight": f"{words}.token_type_embeddings.weight",
            "embeddings.norm.{}": f"{words}.LayerNorm.{{}}",
            f"{ours}.self_attn.in_proj_{{}}": joined(
                *[f"{theirs}.{name}.{{}}" for name in names.qkv]
            ),
            f"{ours}.self_attn.out_proj.{{}}": f"{theirs}.{names.out}.{{}}",
            f"{ours}.norm1.{{}}": f"{theirs}.{names.norm1}.{{}}",
            f"{ours}.linear1.{{}}": f"{theirs}.{names.linear1}.{{}}",
            f"{ours}.linear2.{{}}": f"{theirs}.{names.linear2}.{{}}",
            f"{ours}.norm2.{{}}": f"{theirs}.{names.norm2}.{{}}",
            **({} if pooler is None else {"pooler.{}": pooler}),
        }
