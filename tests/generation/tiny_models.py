"""Small models with random weights, large enough that tokens differ."""

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.pretrained import GPT2, T5, GPT2Config, Marian, MarianConfig, T5Config
from dynbatch.models.pretrained.llama import Llama, LlamaConfig

VOCAB = 50


class Windowed(models.Module):
    """A language model of a user's own: sinusoids, a window, ALiBi."""

    def __init__(self, window=None, bias=None):
        self.embedding = models.Embedding(VOCAB, 32)
        self.norm = models.LayerNorm(32)
        self.attention = models.MultiHeadAttention(32, 4, position_bias=bias)
        self.output = models.Linear(32, VOCAB)
        self.window = window

    def __call__(self, graph, ids):
        x = self.embedding(graph, ids)
        x = x + F.sinusoidal(x)
        x = x + self.attention(self.norm(x), causal=True, window=self.window)
        return self.output(F.relu(x))


class Bigram(models.Module):
    """A table of the logits after each word, and one after each position."""

    def __init__(self):
        self.words, self.positions = models.Embedding(VOCAB, VOCAB), models.Embedding(300, VOCAB)

    def __call__(self, graph, ids):
        x = self.words(graph, ids)
        return x + F.positions(x, self.positions.weight)


class Averages(models.Module):
    """Attention, and nothing behind it."""

    def __init__(self):
        self.words = models.Embedding(VOCAB, VOCAB)

    def __call__(self, graph, ids):
        x = self.words(graph, ids)
        return F.attention(x, x, x, causal=True)


class Mixed(Windowed):
    """A layer that sees a window, and one that sees all."""

    def __init__(self):
        super().__init__(window=20)
        self.whole = models.MultiHeadAttention(32, 4, position_bias=F.alibi(4))

    def __call__(self, graph, ids):
        x = self.embedding(graph, ids)
        x = x + self.attention(self.norm(x), causal=True, window=self.window)
        return self.output(x + self.whole(self.norm(x), causal=True))


class LSTMLanguageModel(models.Module):
    """Two layers of LSTM over words."""

    def __init__(self):
        self.embedding = models.Embedding(VOCAB, 12)
        self.lstm = models.LSTM(12, 16, layers=2)
        self.output = models.Linear(16, VOCAB)

    def __call__(self, graph, ids):
        return self.output(self.lstm(self.embedding(graph, ids)))


@db.cell
def linear_step(x, states, params):
    """A step of linear attention of two heads, whose state is a matrix each, and a mean."""
    q, k, v = [F.reshape(part, (2, 4)) for part in (x[:8], x[8:16], params.values @ x)]
    state, mean = states
    state, mean = 0.9 * state + F.outer(k, v), 0.5 * mean + x[:8]
    return F.reshape(F.vecmat(q, state), (-1,)) + mean, (state, mean)


class LinearAttention(models.Module):
    """A layer of linear attention over words, with a first state that is learned."""

    def __init__(self):
        self.embedding, self.project = models.Embedding(VOCAB, 12), models.Linear(12, 16)
        self.values, self.first = db.Parameter(np.zeros((8, 16))), db.Parameter(np.zeros(8))
        self.gain, self.output = db.Parameter(np.zeros(8)), models.Linear(8, VOCAB)

    def __call__(self, graph, ids):
        x = self.project(self.embedding(graph, ids))
        ys, _ = db.scan(linear_step, x, (db.zeros(2, 4, 4), self.first), self)
        return self.output(ys * self.gain)


class MatrixStates(models.Module):
    """A layer of gated DeltaNet, one of Mamba-2, and attention between them."""

    def __init__(self):
        self.embedding = models.Embedding(VOCAB, 16)
        self.delta = models.GatedDeltaNet(16, 2, value_heads=4, key_dim=4, value_dim=6)
        self.attention = models.MultiHeadAttention(16, 2)
        self.mamba = models.Mamba2(16, 4, state=5, groups=2, kernel=3)
        self.norm, self.output = models.RMSNorm(16), models.Linear(16, VOCAB)

    def __call__(self, graph, ids):
        x = self.embedding(graph, ids)
        x = x + self.delta(x)
        x = x + self.attention(self.norm(x), causal=True)
        return self.output(x + self.mamba(x))


@db.cell
def attentive_step(x, state, params, memory):
    """A step of a GRU-like cell that looks at a memory."""
    keys, values = memory
    (h,) = state
    seen = F.attention(h, keys, values)
    h = F.tanh(params.mix(F.concat([x, h, seen])))
    return h, (h,)


class Writer(models.Module):
    """An encoder-decoder of a user's own: a bi-LSTM, and a cell with attention."""

    start = 3

    def __init__(self):
        self.source, self.target = models.Embedding(VOCAB, 12), models.Embedding(VOCAB, 12)
        self.encoder = models.LSTM(12, 8, bidirectional=True)
        self.mix, self.first = models.Linear(12 + 16 + 16, 16), models.Linear(16, 16)
        self.output = models.Linear(16, VOCAB)

    def encode(self, graph, source):
        memory = self.encoder(self.source(graph, source))
        return F.tanh(self.first(F.mean(memory, dim=0))), memory

    def decode(self, graph, ids, first, memory):
        return db.scan(attentive_step, self.target(graph, ids), (first,), self, (memory, memory))[0]

    def predict(self, hidden):
        return self.output(hidden)


def _marian():
    parts = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in parts.items()}
    return Marian(MarianConfig(vocab_size=VOCAB, d_model=32, decoder_start_token_id=7, **sides))


def _llama():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Llama(LlamaConfig(vocab_size=VOCAB, **sizes, **heads))


MAKERS = {
    "gpt2": lambda: GPT2(
        GPT2Config(vocab_size=VOCAB, n_positions=300, n_embd=32, n_layer=2, n_head=4)
    ),
    "llama": _llama,
    "t5": lambda: T5(
        T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4)
    ),
    "marian": _marian,
    "lstm": LSTMLanguageModel,
    "linear": LinearAttention,
    "matrix states": MatrixStates,
    "bigram": Bigram,
    "averages": Averages,
    "writer": Writer,
    "seq2seq": lambda: models.Seq2Seq(VOCAB, VOCAB, embed=12, hidden=16, layers=2, dropout=0.1),
    "mixed": Mixed,
    "window": lambda: Windowed(window=5),
    "alibi": lambda: Windowed(bias=F.alibi(4)),
}
DECODERS = ("gpt2", "llama", "window", "alibi")


def tiny(name, seed=0, scale=0.4):
    """A model in training mode: weights N(0, scale²), those of norms around 1."""
    model = MAKERS[name]()
    rng = np.random.default_rng(seed)
    for full_name, parameter in model.named_parameters():
        noise = scale * rng.standard_normal(parameter.shape)
        parameter.assign(1 + noise if "norm" in full_name and "weight" in full_name else noise)
    return model


def logits_of(graph, model, source, ids):
    """All logits at once, without a cache."""
    if hasattr(model, "encode"):
        encoded = model.encode(graph, source)
        encoded = encoded if isinstance(encoded, tuple) else (encoded,)
        return model.predict(model.decode(graph, ids, *encoded))
    return model.logits(graph, ids) if hasattr(model, "logits") else model(graph, ids)
