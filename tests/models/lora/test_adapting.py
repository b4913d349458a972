"""LoRA's matrices beside layers: their formula, merged and not, alone trained, and refusals."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models import LoraConfig
from dynbatch.models.adapter import Adapter
from dynbatch.models.lora.matrices import LoraMatrices
from dynbatch.models.pretrained import ModernBertConfig, ModernBertForMaskedWords
from tests.models.pretrained import fixtures
from tests.models.pretrained.test_families import TRAINED, read, values

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
# By name: a model, and the layers of it to adapt.
LAYERS = {
    "linear": (lambda: models.Sequential(models.Linear(8, 6, rng=0)), ["0"]),
    "in a block": (lambda: models.FeedForward(8, 6, "swiglu", rng=0), ["linear1", "linear2"]),
    "q": (lambda: models.MultiHeadAttention(8, 2, rng=0), ["q_proj"]),
    "k and v": (lambda: models.MultiHeadAttention(8, 4, kv_heads=2, rng=0), ["v_proj", "k_proj"]),
    "all": (
        lambda: models.MultiHeadAttention(8, 2, rotary={}, rng=0),
        ["q_proj", "k_proj", "v_proj", "out_proj"],
    ),
    "gates": (
        lambda: models.GatedDeltaNet(8, 2, rng=0),
        ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"],
    ),
}


def run(model, x=X):
    with db.Graph() as graph:
        return model(F.input(graph, x)).value.copy()


def at_random(*names, **settings):
    return LoraConfig(r=2, lora_alpha=3, target_modules=names, init_lora_weights=False, **settings)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_added_is_that_of_the_merged_weight_and_goes_without_a_trace(name):
    make, names = LAYERS[name]
    model = make()
    state, before = model.state_dict(), run(model)
    assert len(models.add_adapter(model, at_random(*names), rng=1)) == len(names)
    adapted = run(model)
    assert abs(adapted - before).max() > 0.01
    models.merge_adapter(model)
    np.testing.assert_allclose(run(model), adapted, atol=1e-6)
    assert model.state_dict().keys() == state.keys()
    models.unmerge_adapter(model)
    assert run(model).tobytes() == adapted.tobytes()
    models.remove_adapter(model)
    assert run(model).tobytes() == before.tobytes()
    assert all([np.array_equal(state[n], array) for n, array in model.state_dict().items()])


def test_the_values_are_those_of_the_formula():
    model = models.Sequential(models.Linear(8, 6, rng=0))
    models.add_adapter(model, at_random("0", use_rslora=True), rng=1)
    state = {name.rpartition(".")[2]: array for name, array in model.state_dict().items()}
    expected = X @ state["weight"].T + state["bias"]
    expected += 3 / np.sqrt(2) * (X @ state["lora_A"].T) @ state["lora_B"].T
    np.testing.assert_allclose(run(model), expected, rtol=1e-5, atol=1e-6)


def test_it_adds_nothing_at_first():
    for config in (LoraConfig(), LoraConfig(init_lora_weights="gaussian", target_modules="out.*")):
        model = models.MultiHeadAttention(8, 2, rng=0)
        before = run(model)
        models.add_adapter(model, config)
        np.testing.assert_array_equal(run(model), before)


@pytest.mark.parametrize("name", TRAINED)
def test_each_layer_that_can_be_adapted_is_where_it_is_called(name):
    """A function that took a layer's weight past the layer would leave its matrices without
    gradient."""
    model, sentence = read(name), fixtures.sentences(name)[0]
    models.add_adapter(model, at_random(*models.adaptable(model), exclude_modules=["pooler.dense"]
                                        if "classes" not in name else None))  # fmt: skip
    with db.Graph() as graph:
        graph.backward(F.sum(values(graph, model, sentence) ** 2))
    without = [n for n, p in model.named_parameters() if not p.frozen and p.grad is None]
    assert not [each for each in without if "pooler" not in each]


def test_the_output_of_modernbert_is_adapted():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ModernBertConfig(vocab_size=9, intermediate_size=4, **sizes)
    model = ModernBertForMaskedWords(config, rng=0)
    models.add_adapter(model, at_random("decoder"))
    with db.Graph() as graph:
        graph.backward(F.sum(model.logits(graph, [3, 4]) ** 2))
    assert all([p.frozen or p.grad is not None for p in model.parameters()])


def test_a_layer_of_ones_own_may_be_called_adapter():
    model = models.FeedForward(8, 6)
    model.adapter = models.Linear(8, 8)
    models.add_adapter(model, at_random("linear1", modules_to_save=["adapter"]))
    trained = [name for name, p in model.named_parameters() if not p.frozen]
    assert "adapter.weight" in trained and "linear1.adapter.parts.linear1.lora_A" in trained


def test_a_sentence_is_adapted_in_a_batch_as_alone():
    model = read("llama")
    models.add_adapter(model, at_random("q_proj", "embed_tokens", "up_proj"), rng=1)
    sentences = [[3, 4, 5], [], [7], [2, 9, 9, 4, 6, 3]]
    alone = []
    for ids in sentences:
        with db.Graph() as graph:
            alone.append(model.logits(graph, ids).value.copy())
    with db.Graph() as graph:
        together = [model.logits(graph, ids) for ids in sentences]
        graph.forward()
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other.value, rtol=1e-5, atol=1e-6)


def test_dropout_is_the_graphs_and_ends_with_training():
    model = models.Sequential(models.Linear(8, 6, rng=0))
    models.add_adapter(model, at_random("0", lora_dropout=0.5), rng=1)
    ends = []
    for seed, is_training in ((1, True), (1, True), (2, True), (1, False), (2, False)):
        model.train(is_training)
        with db.Graph(seed=seed) as graph:
            ends.append(model(F.input(graph, X)).value.copy())
    first, again, other, plain, plain_again = ends
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(plain, plain_again)
    assert abs(first - other).max() > 0.01 and abs(first - plain).max() > 0.01
    models.merge_adapter(model.train())
    models.unmerge_adapter(model.eval())
    np.testing.assert_array_equal(run(model), plain)


def test_the_matrices_alone_are_trained_unless_more_is_asked_for():
    for settings, further in (
        ({}, []),
        ({"modules_to_save": ["norm2"]}, ["norm2.weight", "norm2.bias"]),
        ({"bias": "lora_only"}, ["linear1.bias"]),
        ({"bias": "all"}, ["self_attn.in_proj_bias", "self_attn.out_proj.bias", "linear1.bias",
                           "linear2.bias", "norm1.bias", "norm2.bias"]),
    ):  # fmt: skip
        model = models.TransformerEncoderLayer(4, 2)
        models.freeze(model)  # as `remove_adapter` leaves it
        models.add_adapter(model, LoraConfig(target_modules=["linear1"], **settings))
        trained = [name for name, p in model.named_parameters() if not p.frozen]
        matrices = [f"linear1.adapter.parts.linear1.lora_{each}" for each in "AB"]
        assert sorted(trained) == sorted([*matrices, *further])


def test_ranks_and_scales_may_differ_by_layer():
    model = models.FeedForward(8, 6)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", rank_pattern={"linear1": 2},
        alpha_pattern={".*2": 1},
    )  # fmt: skip
    models.add_adapter(model, config)
    parts = [each for each in model.modules() if isinstance(each, LoraMatrices)]
    assert [(part.name, part.rank, part.scale) for part in parts] == [
        ("linear1", 2, 4.0), ("linear2", 4, 0.25),
    ]  # fmt: skip


def test_an_adapted_model_goes_to_float64_and_back_and_unmerges_there():
    model = models.Sequential(models.Linear(8, 6, rng=0))
    models.add_adapter(model, at_random("0"), rng=1)
    models.merge_adapter(model)
    model.astype("float64")
    models.unmerge_adapter(model)
    assert {p.dtype.name for p in model.parameters()} == {"float64"}
    assert any(isinstance(each, Adapter) for each in model.modules())


def test_steps_move_the_matrices_alone():
    model = read("gpt2")
    base = {name: array for name, array in model.state_dict().items()}
    models.add_adapter(model, LoraConfig(r=2), rng=0)
    optimizer = optim.AdamW(model, lr=0.1)
    losses = []
    for _ in range(5):
        with db.Graph() as graph:
            loss = model.loss(graph, [3, 4, 5, 6, 7])
            graph.backward(loss)
            losses.append(float(loss))
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    state = model.state_dict()
    assert all([np.array_equal(state[name], array) for name, array in base.items()])


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"target_modules": ["liner1"]}, r"'liner1' stands for no layer.*modules=\['linear1'\]"),
        ({"target_modules": ["norm1"]}, "'norm1' stands for no layer"),
        ({"target_modules": "linear("}, "is not a regular expression"),
        ({"target_modules": 3}, "target_modules is 3"),
        ({"use_dora": True}, "there is no argument 'use_dora'"),
        ({"bias": "some"}, "bias is 'some'.*one of 'none', 'all', 'lora_only'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"r": 0}, "r is 0"),
        ({"rank_pattern": {"linear1": 1.5}}, r"rank_pattern\['linear1'\] is 1\.5"),
        ({"modules_to_save": ["head"]}, "modules_to_save: .'head'. stands for no layer"),
        ({"target_modules": ["q_proj"], "bias": "lora_only"}, "rows of one parameter"),
        ({"exclude_modules": ".*"}, "queries and values are"),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_refused_by_name_and_the_model_is_as_it_was(settings, said):
    model = models.TransformerEncoderLayer(4, 2)
    with pytest.raises(ArgumentError, match=f"(?s){said}"):
        models.add_adapter(model, LoraConfig(**settings))
    assert not any(p.frozen for p in model.parameters()) and len(model.parameters()) == 12


def test_calls_in_a_wrong_order_are_refused():
    model = models.TransformerEncoderLayer(4, 2)
    for function in (models.merge_adapter, models.unmerge_adapter, models.remove_adapter):
        with pytest.raises(ArgumentError, match="has no adapter"):
            function(model)
    models.add_adapter(model)
    with pytest.raises(ArgumentError, match="has an adapter"):
        models.add_adapter(model)
    with pytest.raises(ArgumentError, match="its adapter is not merged"):
        models.unmerge_adapter(model)
    models.merge_adapter(model)
    with pytest.raises(ArgumentError, match="its adapter is merged"):
        models.merge_adapter(model)
    merged = model.state_dict()
    with pytest.raises(CheckpointError, match=r"(?s)is merged into this Tr.*remove_adapter"):
        model.load_state_dict({name: value + 1 for name, value in merged.items()})
    assert all([np.array_equal(merged[name], value) for name, value in model.state_dict().items()])
    models.remove_adapter(model)
    model.load_state_dict(merged)


def test_a_table_that_is_the_output_too_is_not_merged():
    model = read("gpt2")
    models.add_adapter(model, at_random("wte"))
    with pytest.raises(ArgumentError, match=r"'word\.weight' is the weight of several layers"):
        models.merge_adapter(model)
