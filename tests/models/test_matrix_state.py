import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.kernels.c.runtime.library import reason
from dynbatch.testing import check_batching, check_gradient

LENGTHS = (5, 1, 0, 70)
DELTA = {
    "one head": {"heads": 1},
    "shared keys": {"heads": 2, "value_heads": 4, "key_dim": 3, "value_dim": 5, "kernel": 3},
}
MAMBA = {
    "one group": {"heads": 4, "state": 6},
    "groups": {"heads": 4, "state": 3, "groups": 2, "kernel": 2, "bias": True, "conv_bias": False,
               "dt_limit": (0.01, 0.5)},
}  # fmt: skip
LAYERS = {
    **{
        f"GatedDeltaNet, {name}": (models.GatedDeltaNet, options) for name, options in DELTA.items()
    },
    **{f"Mamba2, {name}": (models.Mamba2, options) for name, options in MAMBA.items()},
}
over_layers = pytest.mark.parametrize(("kind", "options"), LAYERS.values(), ids=LAYERS)


def reference(kind, options):
    """The layer of `transformers` with such sizes."""
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle here")
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    torch.manual_seed(0)
    heads = options["heads"]
    if kind is models.GatedDeltaNet:
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        config = transformers.Qwen3NextConfig(
            hidden_size=8, num_hidden_layers=1, layer_types=["linear_attention"],
            linear_num_key_heads=heads, linear_num_value_heads=options.get("value_heads", heads),
            linear_key_head_dim=options.get("key_dim", 8 // heads),
            linear_value_head_dim=options.get("value_dim", 8 // heads),
            linear_conv_kernel_dim=options.get("kernel", 4),
        )  # fmt: skip
        return qwen.Qwen3NextGatedDeltaNet(config, 0).eval()
    from transformers.models.mamba2 import modeling_mamba2 as mamba

    config = transformers.Mamba2Config(
        hidden_size=8, num_heads=heads, head_dim=16 // heads, state_size=options["state"], expand=2,
        n_groups=options.get("groups", 1), conv_kernel=options.get("kernel", 4),
        use_bias=options.get("bias", False), use_conv_bias=options.get("conv_bias", True),
        time_step_limit=options.get("dt_limit", (0.0, float("inf"))), chunk_size=16,
        num_hidden_layers=1,
    )  # fmt: skip
    return mamba.Mamba2Mixer(config, 0).eval()


@over_layers
def test_a_layer_is_that_of_transformers(kind, options):
    theirs = reference(kind, options)
    torch = pytest.importorskip("torch")
    ours = kind(8, **options, rng=0)
    ours.load_state_dict({name: x.detach().numpy() for name, x in theirs.state_dict().items()})
    rng = np.random.default_rng(1)
    sentences = [rng.standard_normal((n, 8)).astype(np.float32) for n in LENGTHS if n]
    with db.Graph() as graph:
        nodes = [F.input(graph, x).keep() for x in sentences]
        ys = [ours(x).keep() for x in nodes]
        weights = [rng.standard_normal(x.shape).astype(np.float32) for x in sentences]
        graph.backward(
            F.sum([F.sum(y * F.input(graph, w)) for y, w in zip(ys, weights, strict=True)])
        )
        for x, w, node, y in zip(sentences, weights, nodes, ys, strict=True):
            leaf = torch.tensor(x, requires_grad=True)
            expected = theirs(leaf[None])[0]
            (expected * torch.tensor(w)).sum().backward()
            assert np.allclose(y.value, expected.detach().numpy(), rtol=1e-4, atol=1e-4)
            assert np.allclose(node.gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-4)
    for name in ("A_log", "dt_bias"):
        found, expected = getattr(ours, name).grad, getattr(theirs, name).grad.numpy()
        assert np.allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(bool(reason()), reason="without C products depend on their company")
@over_layers
def test_a_sentence_has_its_values_whatever_stands_beside_it(kind, options):
    layer, rng = kind(8, **options, rng=0), np.random.default_rng(1)
    sentences = [rng.standard_normal((n, 8)) for n in LENGTHS]

    def values(chosen):
        with db.Graph() as graph:
            ys = [layer(F.input(graph, x)).keep() for x in chosen]
            return [y.value for y in ys]

    together = values(sentences)
    for one, y in zip(sentences, together, strict=True):
        (alone,) = values([one])
        np.testing.assert_array_equal(y, alone)
    noise = [sentences[0], np.full((1, 8), 1e30), *sentences[2:]]
    np.testing.assert_array_equal(values(noise)[3], together[3])


@over_layers
def test_sentences_batch(kind, options):
    layer = kind(8, **options, rng=0)
    check_batching(lambda graph, x: layer(x), shapes=[[(n, 8)] for n in LENGTHS], parameters=layer)


@over_layers
def test_gradients_are_central_differences(kind, options):
    layer = kind(8, **options, rng=0)
    check_gradient(lambda graph, x: layer(x), shapes=[(6, 8)], parameters=layer)


def test_a_causal_convolution_begins_anew_in_each_sentence():
    layer = models.CausalConv1d(2, kernel=3, rng=0)
    weight, bias = layer.weight.value, layer.bias.value
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    with db.Graph() as graph:
        ys = [layer(F.input(graph, part)).value for part in (x, x[2:], x[:0])]
    for y, part in zip(ys, (x, x[2:], x[:0]), strict=True):
        padded = np.concatenate([np.zeros((2, 2)), part])
        expected = [(padded[t : t + 3].T * weight[:, 0]).sum(1) + bias for t in range(len(part))]
        assert np.allclose(y, np.reshape(expected, (-1, 2)), atol=1e-6)
    layer = models.CausalConv1d(2, kernel=1, bias=False, rng=0)
    with db.Graph() as graph:
        for part in (x, x[:0]):
            y = layer(F.input(graph, part)).value
            np.testing.assert_array_equal(y, part * layer.weight.value[:, 0, 0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.GatedDeltaNet(8, 3), "3 heads for 8 features"),
        (lambda: models.GatedDeltaNet(8, 2, value_heads=3), "3 value_heads for 2 heads"),
        (lambda: models.Mamba2(8, 3), "16 expand · dim for 3 heads"),
        (lambda: models.Mamba2(8, 4, groups=3), "4 heads for 3 groups"),
        (lambda: models.Mamba2(8, 4, dt_limit=0.5), "dt_limit is 0.5"),
        (lambda: models.Mamba2(8, 4, dt_limit=(0.5, 0.1)), "dt_limit is from 0.5 to 0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_a_state_of_other_sizes_is_refused_by_its_names():
    layer = models.GatedDeltaNet(8, 2)
    state = {name: x for name, x in layer.state_dict().items() if "qkv" not in name}
    with pytest.raises(CheckpointError, match=r"in_proj_qkvz\.weight"):
        layer.load_state_dict({**state, "in_proj_qkvz.weight": np.zeros((33, 8))})
