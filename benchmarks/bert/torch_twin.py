"""The network in PyTorch, and the bytes of its training step.

Its attention is the fused kernel, which stores no scores: dropout of attention's weights, for which
PyTorch's CPU has no such kernel, is left out. Only words to be predicted get logits, and all of
these are stored, as `cross_entropy` wants them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear

from benchmarks.bert.estimates import ADAM
from benchmarks.bert.examples import PREDICTED
from benchmarks.peers.pytorch_transformer import Encoder, attention
from dynbatch.models.pretrained.bert import Bert, BertConfig
from dynbatch.padding.pytorch import measure_torch


class Embeddings(nn.Module):
    """Word, position and type 0, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_position_embeddings, size)
        self.token_type = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.position.weight[: ids.shape[1]] + self.token_type.weight[0]
        made: Tensor = self.dropout(self.norm(x))
        return made


class TorchBert(nn.Module):
    """`BertForMaskedWords` in PyTorch, on rectangles, under dynbatch's names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(
            config.num_hidden_layers, size, config.intermediate_size,
            dropout=config.hidden_dropout_prob,
        )  # fmt: skip
        self.transform = nn.Linear(size, size)
        self.transform_norm = nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.layer_norm_eps

    def take_values(self, model: Bert) -> None:
        """Copy the parameters of dynbatch's model; a pooler has no place here."""
        state = {
            name: torch.from_numpy(parameter.value)
            for name, parameter in model.named_parameters()
            if not name.startswith("pooler.")
        }
        missing, unexpected = self.load_state_dict(state, strict=False)
        head = ("transform", "bias")
        assert not unexpected and all([name.startswith(head) for name in missing]), missing

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last layer's values, (B, T) -> (B, T, D); a mask (B, 1, 1, T) is False at padding."""
        x: Tensor = self.encoder(
            self.embeddings(ids), lambda qkv: attention(qkv, self.heads, mask=mask)
        )
        return x

    def loss(self, ids: Tensor, places: Tensor) -> Tensor:
        """The mean loss of the words at `places`, numbers in the flattened ids (B, T)."""
        x = self.states(ids).flatten(0, 1).index_select(0, places)
        x = self.transform_norm(gelu(self.transform(x)))
        return cross_entropy(
            linear(x, self.embeddings.word.weight, self.bias), ids.flatten()[places]
        )


class SentenceVectors(nn.Module):
    """The means of the sentences' last values, padding left out: (B, T) -> (B, D)."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.network = TorchBert(bert.config)
        self.network.take_values(bert)
        self.eval()

    def forward(self, ids: Tensor, is_word: Tensor) -> Tensor:
        states = self.network.states(ids, is_word[:, None, None]) * is_word[:, :, None]
        return states.sum(1) / is_word.sum(1)[:, None]


def activation_bytes(network: TorchBert, sentences: int, length: int) -> int:
    """Bytes at the peak of forward and backward, tensor by tensor, without the parameters'."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(
        network.embeddings.word.num_embeddings, (sentences, length), generator=generator
    )
    tokens = sentences * length
    places = torch.randperm(tokens, generator=generator)[: max(1, round(PREDICTED * tokens))]
    parameters = list(network.parameters())
    return measure_torch(lambda: network.loss(ids, places), parameters).peak_bytes


class TorchMemory:
    """Bytes of PyTorch's step, measured on few tokens and on twice as many, and from there a line.

    A step holds nothing that grows faster than its tokens, however these are cut into sentences.
    """

    LENGTH = 128
    FEW = 2  # sentences

    def __init__(self, config: BertConfig) -> None:
        network = TorchBert(config)
        length = min(self.LENGTH, config.max_position_embeddings)
        few, twice = [activation_bytes(network, n, length) for n in (self.FEW, 2 * self.FEW)]
        self._tokens, self._few = self.FEW * length, few
        self._each = (twice - few) / self._tokens
        self._state = ADAM * sum([4 * p.numel() for p in network.parameters()])

    def total(self, length: int, sentences: int) -> int:
        """Parameters, gradients, Adam's moments, and the peak of forward and backward."""
        more = length * sentences - self._tokens
        return round(self._state + self._few + self._each * more)
