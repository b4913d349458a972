"""A family of models with each kind of entry that a table can have, and its files by hand."""

import json
from dataclasses import dataclass

import numpy as np

from dynbatch import models
from dynbatch.errors import ArgumentError
from dynbatch.models.initial import generator, glorot, zeros
from dynbatch.models.pretrained import ModelConfig, PretrainedModel
from dynbatch.models.pretrained.table import as_row, joined, transposed


@dataclass(frozen=True, kw_only=True)
class TinyConfig(ModelConfig):
    model_types = ("tiny", "tinier")

    vocab_size: int
    dim: int = 4
    layers: int = 2
    eps: float = 1e-12
    act: str | None = "relu"
    tie_word_embeddings: bool = True

    def __post_init__(self):
        if self.act not in (None, "relu"):
            raise ArgumentError(f"act is {self.act!r}")


class TinyLayer(models.Module):
    def __init__(self, dim, eps, rng):
        self.in_proj_weight, self.in_proj_bias = glorot(rng, (3 * dim, dim)), zeros(3 * dim)
        self.linear = models.Linear(dim, 2 * dim, rng=rng)
        self.norm = models.LayerNorm(dim, eps)


class Tiny(PretrainedModel):
    config_type = TinyConfig
    architecture = "TinyModel"
    prefix = "tiny."
    skipped = ("position_ids", "h.*.attn.mask", "cls.**")

    def __init__(self, config, *, rng=None):
        rng = generator(rng)
        self.config = config
        self.embed = models.Embedding(config.vocab_size, config.dim, rng=rng)
        self.layers = [TinyLayer(config.dim, config.eps, rng) for _ in range(config.layers)]
        self.final_bias = zeros(config.vocab_size)
        self.head = models.Linear(config.dim, config.vocab_size, bias=False, rng=rng)
        if config.tie_word_embeddings:
            self.head.weight = self.embed.weight

    def table(self):
        return {
            "embed.weight": "tiny.wte.weight",
            "layers.*.in_proj_{}": joined(*[f"tiny.h.*.attn.{each}.{{}}" for each in "qkv"]),
            "layers.*.linear.{}": transposed("tiny.h.*.c_fc.{}"),
            "layers.*.norm.{}": "tiny.h.*.LayerNorm.{}",
            "final_bias": as_row("final_logits_bias"),
            "head.weight": "lm_head.weight",
        }

    def tied(self):
        return {"lm_head.weight": "tiny.wte.weight"} if self.config.tie_word_embeddings else {}


def tiny(**changes):
    """A model whose values all differ, as a training would leave it."""
    model = Tiny(TinyConfig(**{"vocab_size": 7, **changes}), rng=0)
    rng = np.random.default_rng(1)
    for parameter in model.parameters():
        parameter.assign(rng.standard_normal(parameter.shape))
    return model


def read(path):
    """Header and bytes of the tensors of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def pack(path, tensors):
    """A file of NumPy arrays, by (name, dtype of safetensors)."""
    header, body = {}, b""
    for (name, dtype), array in tensors.items():
        start, body = len(body), body + array.tobytes()
        offsets = [start, len(body)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    write(path, header, body)


def same(model, other):
    """Whether two models have equal values to the bit."""
    one, two = model.state_dict(), other.state_dict()
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
