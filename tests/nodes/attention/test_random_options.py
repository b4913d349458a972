"""Attention in random configurations of all its options, and in random mini-batches."""

import math

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels.dropout import random_bits
from tests.attention_reference import visible
from tests.marks import quick

# Of a sentence's losses and gradients, against PyTorch's in float64.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


class Configuration:
    """Sentences and options, drawn from a seed."""

    def __init__(self, seed, longest):
        self.rng = rng = np.random.default_rng(seed)
        self.dtype = str(rng.choice(["float32", "float64"]))
        self.kv_heads, shared = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        self.heads = self.kv_heads * shared
        self.width, self.value_width = (int(n) for n in rng.integers(1, 17, 2))
        lengths = rng.integers(0, longest + 1, (4, 2))
        self.lengths = [(int(a), int(b)) for a, b in [*lengths, (0, 3), (1, int(lengths[0, 0]))]]
        self.causal = bool(rng.integers(2))
        self.window = int(rng.integers(0, longest)) if rng.integers(3) == 0 else None
        self.dropout = float(rng.uniform(0.05, 0.9)) if rng.integers(2) else 0.0
        self.scale = float(rng.uniform(0.1, 1.0)) if rng.integers(2) else None
        self.masks = [self.mask(pair) for pair in self.lengths]
        self.table = db.Parameter(rng.standard_normal((9, self.heads)).astype(self.dtype), "table")
        self.bias, self.rows_of = self.drawn_bias()

    def mask(self, pair):
        shape = (None, pair, pair[1:])[self.rng.integers(3)]
        return None if shape is None else self.rng.random(shape) < 0.8

    def drawn_bias(self):
        kind = self.rng.integers(5)
        if kind < 2:
            return (None, None) if kind == 0 else (F.alibi(self.heads), None)
        bias = {
            2: lambda: F.relative_bias(self.table),
            3: lambda: F.t5_bias(self.table, 60),
            4: lambda: F.t5_bias(self.table, 60, bidirectional=False),
        }[int(kind)]()
        return bias, bias.rule.rows

    def sentence(self, number):
        queries, keys = self.lengths[number]
        rng = np.random.default_rng(number)
        shapes = [
            (queries, self.heads * self.width),
            (keys, self.kv_heads * self.width),
            (keys, self.kv_heads * self.value_width),
            (queries, self.heads * self.value_width),
        ]
        return [rng.standard_normal(shape).astype(self.dtype) for shape in shapes]

    def run(self, examples):
        """Value, gradients and stream of each example, and the table's gradient.

        Examples that are equal modulo the number of sentences are equal sentences.
        """
        self.table.zero_grad()
        found = []
        with db.Graph(dtype=self.dtype, seed=7) as graph:
            losses = []
            for example in examples:
                number = example % len(self.lengths)
                *xs, weights = self.sentence(number)
                xs = [F.input(graph, x).keep() for x in xs]
                with graph.example(example):
                    y = F.attention(
                        *xs, scale=self.scale, causal=self.causal, window=self.window,
                        mask=self.masks[number], heads=self.heads, kv_heads=self.kv_heads,
                        bias=self.bias, dropout=self.dropout,
                    ).keep()  # fmt: skip
                losses.append(F.sum(y * F.input(graph, weights)))
                found.append((y, xs))
            graph.backward(F.sum(losses))
            found = [
                ([y.value, *[x.gradient for x in xs]], getattr(y, "stream", None))
                for y, xs in found
            ]
        gradient = self.table.grad
        return found, np.zeros_like(self.table.value) if gradient is None else gradient.copy()

    def by_torch(self, torch, number, stream, table):
        """The value and the gradients of one sentence, in float64; adds to the table's."""
        queries, keys = self.lengths[number]
        *xs, weights = [torch.tensor(x.astype(np.float64)) for x in self.sentence(number)]
        leaves = [x.requires_grad_() for x in xs]
        q, k, v = [
            x.reshape(len(x), heads, x.shape[1] // heads).transpose(0, 1)
            for x, heads in zip(leaves, (self.heads, self.kv_heads, self.kv_heads), strict=True)
        ]
        left = self.window
        seen = visible(queries, keys, left, 0 if self.causal else left, self.masks[number])
        hidden = torch.tensor(~seen)
        far = np.arange(keys)[None] - np.arange(queries)[:, None]
        added = torch.zeros((self.heads, queries, keys), dtype=torch.float64)
        if self.rows_of is not None:
            added = table[torch.tensor(self.rows_of(far))].permute(2, 0, 1)
        elif self.bias is not None:
            slopes = np.array(self.bias.rule.slopes)
            added = torch.tensor(-slopes[:, None, None] * np.abs(far))
        scale = self.scale or self.width**-0.5
        if self.dropout:
            count = self.heads * queries * keys
            bits = random_bits(np.array([stream], np.uint32), np.array([0, count]), 0, count)
            kept = torch.tensor(bits >= int(self.dropout * 2**32)).reshape(added.shape)
            scores = q @ k.repeat_interleave(self.heads // self.kv_heads, 0).transpose(1, 2)
            p = (scores * scale + added).masked_fill(hidden, -1e30).softmax(-1)
            p = p.masked_fill(hidden, 0) * kept / (1 - self.dropout)
            y = p @ v.repeat_interleave(self.heads // self.kv_heads, 0)
        else:
            y = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=added.masked_fill(hidden, -math.inf), scale=scale,
                enable_gqa=True,
            )  # fmt: skip
            y = y.masked_fill(hidden.all(dim=1)[:, None], 0)
        y = y.transpose(0, 1).reshape(weights.shape)
        if keys and queries:
            (y * weights).sum().backward()
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
        return [x.detach().numpy() for x in (y, *gradients)]


def distance(found, expected):
    """The largest difference, against 1 or the largest number expected."""
    if not found.size:
        return 0.0
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("seed", quick(range(3), range(200)))
def test_batched_equals_one_by_one_and_torch(seed):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    given = Configuration(seed, 512 if seed > 2 else 40)
    numbers = range(len(given.lengths))
    together, gradient = given.run(numbers)
    table = torch.tensor(given.table.value.astype(np.float64), requires_grad=True)
    alone = np.zeros_like(gradient)
    errors = []
    for number in numbers:
        arrays, stream = together[number]
        ((single, _),), of_table = given.run([number])
        alone += of_table
        errors += [distance(*pair) for pair in zip(single, arrays, strict=True)]
        expected = given.by_torch(torch, number, stream, table)
        errors += [distance(*pair) for pair in zip(arrays, expected, strict=True)]
    errors.append(distance(gradient, alone))
    if table.grad is not None:
        errors.append(distance(gradient, table.grad.numpy()))
    assert max(errors) <= TOLERANCE[given.dtype]


@pytest.mark.parametrize("seed", quick(range(2), range(500)))
def test_an_example_is_the_same_in_every_batch_equal_sentences_among_them(seed):
    """In 20 batches, with the other seeds 10,000."""
    given = Configuration(seed, 6)
    given.dropout, given.dtype = 0.3, "float64"
    given.table = db.Parameter(given.table.value.astype("float64"), "table")
    given.bias, given.rows_of = F.relative_bias(given.table), None
    examples = range(3 * len(given.lengths))
    every, _ = given.run(examples)
    for _ in range(20):
        some = given.rng.permutation(examples)[: given.rng.integers(1, 8)].tolist()
        found, _ = given.run(some)
        for example, (arrays, stream) in zip(some, found, strict=True):
            expected, known = every[example]
            assert stream == known
            assert all([distance(*pair) < 1e-12 for pair in zip(arrays, expected, strict=True)])
