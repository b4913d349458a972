"""The same network in PyTorch, and the bytes of its training step.

Its attention is the fused kernel, which stores no scores: dropout of attention's weights, for which
PyTorch's CPU has no such kernel, is left out. Only words to be predicted get logits, and all of
these are stored, as `cross_entropy` wants them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, scaled_dot_product_attention

from benchmarks.bert.estimates import ADAM
from benchmarks.bert.examples import PREDICTED
from benchmarks.networks import BertLayerSizes
from benchmarks.peers.pytorch_transformer import Layer
from dynbatch.models.pretrained.bert import Bert, BertConfig
from dynbatch.padding.pytorch import measure_torch

NAMES = {
    "in_proj_": "project.", "self_attn.": "", "out_proj": "merge", "linear1": "expand",
    "linear2": "contract", "norm1": "attention_norm", "norm2": "inner_norm", "embeddings.": "",
    "encoder.": "",
}  # fmt: skip
"""Parts of dynbatch's names of parameters, and what is there in this file's."""


class TorchBert(nn.Module):
    """`BertForMaskedWords` in PyTorch, on rectangles."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size = config.hidden_size
        layer = BertLayerSizes(
            config.vocab_size, size, config.intermediate_size, config.num_attention_heads
        )
        self.heads = config.num_attention_heads
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_position_embeddings, size)
        self.token_type = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(
            [Layer(layer, config.hidden_dropout_prob) for _ in range(config.num_hidden_layers)]
        )
        self.transform = nn.Linear(size, size)
        self.transform_norm = nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.layer_norm_eps

    def take_values(self, model: Bert) -> None:
        """Copy the parameters of dynbatch's model; a pooler has no place here."""
        state = {}
        for name, parameter in model.named_parameters():
            for ours, here in NAMES.items():
                name = name.replace(ours, here)
            if not name.startswith("pooler."):
                state[name] = torch.from_numpy(parameter.value)
        missing, unexpected = self.load_state_dict(state, strict=False)
        head = ("transform", "bias")
        assert not unexpected and all([name.startswith(head) for name in missing]), missing

    def states(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last layer's values, (B, T) -> (B, T, D); a mask (B, 1, 1, T) is True at words."""

        def attend(projected: Tensor) -> Tensor:
            query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            return scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2)

        x = self.word(ids) + self.position.weight[: ids.shape[1]] + self.token_type.weight[0]
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, attend)
        return x

    def loss(self, ids: Tensor, places: Tensor) -> Tensor:
        """The mean loss of the words at `places`, numbers in the flattened ids (B, T)."""
        x = self.states(ids).flatten(0, 1).index_select(0, places)
        x = self.transform_norm(gelu(self.transform(x)))
        return cross_entropy(linear(x, self.word.weight, self.bias), ids.flatten()[places])


def activation_bytes(network: TorchBert, sentences: int, length: int) -> int:
    """Bytes at the peak of forward and backward, tensor by tensor, without the parameters'."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(network.word.num_embeddings, (sentences, length), generator=generator)
    tokens = sentences * length
    places = torch.randperm(tokens, generator=generator)[: max(1, round(PREDICTED * tokens))]
    parameters = list(network.parameters())
    return measure_torch(lambda: network.loss(ids, places), parameters).peak_bytes


class TorchMemory:
    """Bytes of PyTorch's step, measured on one and on two sentences, and from there on a line.

    The line is right: a step holds nothing that grows faster than its sentences.
    """

    def __init__(self, config: BertConfig) -> None:
        self._network = TorchBert(config)
        self._state = ADAM * sum([4 * p.numel() for p in self._network.parameters()])
        self._lines: dict[int, tuple[int, int]] = {}

    def total(self, length: int, sentences: int) -> int:
        """Parameters, gradients, Adam's moments, and the peak of forward and backward."""
        if length not in self._lines:
            one, two = [activation_bytes(self._network, count, length) for count in (1, 2)]
            self._lines[length] = one, two - one
        first, each = self._lines[length]
        return self._state + first + (sentences - 1) * each
