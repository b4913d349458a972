"""Blocks on a GPU: a layer's operators are launched once a mini-batch, whatever it holds."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F

# Forward and back: kernels, and a copy each way of the three cuts of the projection.
LAUNCHES_OF_A_LAYER = 29


class Layer(models.Module):
    """A Transformer's layer of one's own."""

    def __init__(self, width=16, heads=2):
        self.norm = models.LayerNorm(width)
        self.project = models.Linear(width, 3 * width, rng=1)
        self.merge = models.Linear(width, width, rng=2)
        self.expand = models.Linear(width, 2 * width, rng=3)
        self.contract = models.Linear(2 * width, width, rng=4)
        self.dropout = models.Dropout(0.1)
        self.heads = heads

    @db.block
    def __call__(self, x, mask):
        query, keys, values = F.chunk(self.project(self.norm(x)), 3)
        seen = F.attention(query, keys, values, heads=self.heads, mask=mask)
        x = x + self.dropout(self.merge(seen))
        return x + self.contract(F.gelu(self.expand(x)))


def step(layers, lengths, device):
    """Launches, uploads, and the gradients of the inputs."""
    generator = np.random.default_rng(0)
    with db.Graph(device, seed=5) as graph:
        inputs = [F.input(graph, generator.standard_normal((n, 16))).keep() for n in lengths]
        losses = []
        for x in inputs:
            mask = generator.random(x.rows) < 0.8
            for layer in layers:
                x = layer(x, mask)
            losses.append(F.sum(F.sum(x)))
        graph.backward(F.sum(losses))
        gradients = [x.gradient for x in inputs]
        assert len(graph) == len(lengths) * (1 + len(layers) + 2) + 1
    for layer in layers:
        for parameter in layer.parameters():
            parameter.zero_grad()
    return graph.statistics.launches, graph.statistics.uploads, gradients


def test_launches_of_layers_depend_neither_on_sentences_nor_on_lengths(cuda):
    layers = [Layer().to("cuda") for _ in range(3)]
    mini_batches = ((3, 4), (9, 2, 2, 5, 1), range(1, 12))
    costs = [{step(layers[:k], n, "cuda")[:2] for n in mini_batches} for k in (1, 2, 3)]
    (one,), (two,), (three,) = costs
    assert three[0] - two[0] == two[0] - one[0] == LAUNCHES_OF_A_LAYER
    assert one[1] == two[1] == three[1]  # uploads


@pytest.mark.parametrize("lengths", [(3, 1, 7, 2), (5,), (0, 4)])
def test_a_gpu_gives_what_the_cpu_gives(cuda, lengths):
    layers = [Layer() for _ in range(2)]
    expected = step(layers, lengths, "cpu")[2]
    for layer in layers:
        layer.to("cuda")
    found = step(layers, lengths, "cuda")[2]
    assert all([np.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True)])


def layers_of(name, count):
    """So many layers of a kind, 16 wide, and the function of a sentence that applies them."""
    if name == "pre-norm":
        options = {"activation": "gelu", "norm_first": True}
    elif name == "post-norm":
        options = {"activation": "gelu"}
    else:
        options = {"activation": "swiglu", "norm": "rms", "norm_first": True, "bias": False}
        options |= {"kv_heads": 1, "rotary": {}}
    encoder = models.TransformerEncoder(count, 16, 2, 32, dropout=0.0, rng=0, **options)
    encoder.to("cuda")
    return db.block(lambda x: encoder(x, causal=True))


def launches_of(name, count, lengths, backward):
    function = layers_of(name, count)
    with db.Graph("cuda") as graph:
        xs = [F.input(graph, np.ones((n, 16), "f4")) for n in lengths]
        loss = F.sum([F.sum(F.sum(function(F.tanh(x.keep())))) for x in xs])
        if backward:
            graph.backward(loss)
        else:
            graph.forward()
        assert graph.statistics.uploads == 1
        return graph.statistics.launches


# Forward: 4 products, the biases of q, k and v, attention, which reads their columns, each other
# bias together with what follows it: an activation, or the sum with the layer's input and its norm.
# Back: 8 products, 4 sums for biases and 2 for norms, 2 norms, an activation, and 2 of attention.
# A norm or product adds its gradient to that of the sum, which nobody copies.
LAYERS = {"pre-norm": (9, 19), "post-norm": (9, 19), "llama": (10, 20)}


@pytest.mark.parametrize("lengths", [(3, 4), (150, 1, 160)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_a_transformer_takes_few_launches_and_no_upload(cuda, name, lengths):
    found = []
    for backward in (False, True):
        two, three = [launches_of(name, count, lengths, backward) for count in (2, 3)]
        found.append(three - two)
    forward, both = found
    assert (forward, both - forward) == LAYERS[name]
    assert forward <= 14 and both - forward <= 28
