"""`models.GPT` in PyTorch: blocks of one length, in a rectangle."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.networks import Array
from benchmarks.peers.pytorch import load_values


class Layer(nn.TransformerEncoderLayer):
    """PyTorch's own parameters; the products and the fused attention are called here, without the
    questions about masks that its `forward` asks."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        batch, length, width = x.shape
        attention = self.self_attn
        three = F.linear(self.norm1(x), attention.in_proj_weight).view(
            batch, length, 3, attention.num_heads, width // attention.num_heads
        )
        query, keys, values = three.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        seen = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
        x = x + attention.out_proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class GPT(nn.Module):
    """The names of its parameters are those of `models.GPT`."""

    def __init__(self, num_tokens: int, longest: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, width)
        self.places = nn.Embedding(longest, width)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            [Layer(width, heads, 4 * width, 0.0, bias=False) for _ in range(layers)]
        )
        self.encoder.norm = nn.LayerNorm(width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Cross-entropy in nats, the mean over all tokens of blocks (B, T + 1)."""
        x = self.tokens(ids[:, :-1]) + self.places.weight[: ids.shape[1] - 1]
        for layer in self.encoder.layers:
            x = layer(x)
        scores = F.linear(self.encoder.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


class PyTorchGPT:
    """The model with a fused AdamW that decays matrices alone."""

    def __init__(
        self, sizes: Mapping[str, int], values: Mapping[str, Array], betas: tuple[float, float],
        weight_decay: float, clip: float,
    ) -> None:  # fmt: skip
        self.model = GPT(**sizes)
        load_values(self.model, values)
        self.clip = clip
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() == 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=betas, fused=True)

    def train(self, blocks: Array, lr: float) -> float:
        """One update. Returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self.model(torch.from_numpy(blocks))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def loss(self, blocks: Array) -> float:
        """The mean over all tokens of the blocks, in nats."""
        with torch.no_grad():
            return self.model(torch.from_numpy(blocks)).item()
