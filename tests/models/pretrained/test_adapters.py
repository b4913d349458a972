"""Adapters in PEFT's folders: read, written, refused, and trained as `peft` trains them."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models import LoraConfig
from dynbatch.models.pretrained import (
    Gemma2,
    Gemma2Config,
    load_adapter,
    load_pretrained,
    save_adapter,
)
from tests.models.pretrained import fixtures
from tests.models.pretrained.test_families import read, values

ABOVE = "base_model.model.model.layers.0."
CONFIG = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "embed_tokens"],
    "task_type": "CAUSAL_LM", "bias": "none", "fan_in_fan_out": False, "use_dora": False,
    "loftq_config": {}, "megatron_core": "megatron.core", "init_lora_weights": True,
}  # fmt: skip


def peft_folder(path, model, **changes):
    """A folder as PEFT writes it, for the first layer's queries and the table of a Llama."""
    rng = np.random.default_rng(5)
    width, words = model.config.hidden_size, model.config.vocab_size
    shapes = {
        f"{ABOVE}self_attn.q_proj.lora_A.weight": (2, width),
        f"{ABOVE}self_attn.q_proj.lora_B.weight": (model.decoder.layers[0].self_attn.inner, 2),
        "base_model.model.model.embed_tokens.lora_embedding_A": (2, words),
        "base_model.model.model.embed_tokens.lora_embedding_B": (width, 2),
        "base_model.model.model.embed_tokens.base_layer.weight": (words, width),  # not read
    }
    tensors = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    settings = {**CONFIG, "target_modules": r".*(layers\.0\..*q_proj|embed_tokens)", **changes}
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, path / "adapter_model.safetensors")
    return tensors


def test_a_folder_of_peft_is_read_and_written_again(tmp_path):
    model = read("llama")
    tensors = peft_folder(tmp_path, model)
    assert load_adapter(model, tmp_path) == [
        "model.embed_tokens", "model.layers.0.self_attn.q_proj",
    ]  # fmt: skip
    attention, words = model.decoder.layers[0].self_attn, model.word
    before = attention.in_proj_weight.numpy(), words.weight.numpy()
    q = [tensors[f"{ABOVE}self_attn.q_proj.lora_{each}.weight"] for each in "BA"]
    e = [tensors[f"base_model.model.model.embed_tokens.lora_embedding_{each}"] for each in "AB"]
    for adapter, weight, change in (
        (attention.adapter, attention.in_proj_weight, 2 * q[0] @ q[1]),
        (words.adapter, words.weight, 2 * (e[1] @ e[0]).T),
    ):
        adapter.merge(weight)
        expected = np.zeros(weight.shape, np.float32)
        expected[: len(change)] = change
        old = before[weight is words.weight]
        np.testing.assert_allclose(weight.numpy() - old, expected, atol=1e-6)
        adapter.unmerge(weight)
    save_adapter(model, tmp_path / "again")
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert tensors.keys() - again.keys() == {
        "base_model.model.model.embed_tokens.base_layer.weight"
    }
    assert all([array.tobytes() == tensors[name].tobytes() for name, array in again.items()])
    written = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert {name: written[name] for name in ("peft_type", "r", "lora_alpha", "task_type")} == {
        name: CONFIG[name] for name in ("peft_type", "r", "lora_alpha", "task_type")
    }


@pytest.mark.parametrize(
    "name, settings",
    [
        ("bert-classes", {"task_type": "SEQ_CLS", "target_modules": "all-linear"}),
        ("bert", {"bias": "all"}),
        ("gpt2", {"target_modules": ["c_attn", "wte", "wpe"], "modules_to_save": ["mlp.c_fc"]}),
        ("t5", {"rank_pattern": {"v": 1}, "bias": "lora_only"}),
        ("marian", {}),
        ("roberta", {"use_rslora": True, "exclude_modules": ["query"]}),
    ],
)
def test_an_adapter_that_is_written_is_read_into_another_copy(name, settings, tmp_path):
    model, other, sentence = read(name), read(name), fixtures.sentences(name)[0]
    names = models.add_adapter(model, LoraConfig(r=2, init_lora_weights=False, **settings), rng=1)
    for parameter in model.parameters():
        if not parameter.frozen:
            parameter.assign(parameter.numpy() + 0.01)
    save_adapter(model, tmp_path)
    assert load_adapter(other, tmp_path) == names
    trained = [[n for n, p in each.named_parameters() if not p.frozen] for each in (model, other)]
    assert trained[0] == trained[1]
    with db.Graph() as graph:
        first, second = [values(graph, each, sentence) for each in (model, other)]
        np.testing.assert_array_equal(first.value, second.value)
    size = os.path.getsize(tmp_path / "adapter_model.safetensors")
    assert size < 4 * sum([p.size for p in model.parameters() if not p.frozen]) + 20_000


def test_a_model_of_ones_own_is_written_under_its_paths(tmp_path):
    made = [models.TransformerEncoderLayer(4, 2, rng=0) for _ in range(2)]
    models.add_adapter(made[0], LoraConfig(r=2, init_lora_weights=False, bias="all"), rng=1)
    save_adapter(made[0], tmp_path)
    load_adapter(made[1], tmp_path)
    states = [model.state_dict() for model in made]
    assert all([np.array_equal(states[1][name], array) for name, array in states[0].items()])
    assert "base_model.model.self_attn.v_proj.lora_A.weight" in load_file(
        tmp_path / "adapter_model.safetensors"
    )


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"peft_type": "IA3"}, "its peft_type is 'IA3'"),
        ({"use_dora": True}, "it asks for use_dora=True, which is not supported"),
        ({"layers_to_transform": [0]}, r"layers_to_transform=\[0\], which is not supported"),
        ({"r": 0}, "r is 0"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"target_modules": ["k_proj"]}, "missing: .*k_proj.lora_A.*unknown: .*q_proj.lora_A"),
        ({"r": 3}, "shapes differ: .*q_proj.lora_A"),
        ({"r": 1 << 42}, "shapes differ: .*q_proj.lora_A"),
        ({"r": 1 << 62}, "no adapter of this Llama can be made"),
        ({"target_modules": "a{99999999999999999999}"}, "is not a regular expression"),
        ({"target_modules": "(" * 5000}, "is not a regular expression"),
        ({"alpha_pattern": {"(?i)q_proj": 3}}, "is not a regular expression"),
        ({"lora_alpha": 10**400}, "no LoraConfig can be made"),
        ({"target_modules": ["query"]}, "'query'. stands for no layer of this Llama"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_and_the_model_is_as_it_was(changes, said, tmp_path):
    model = read("llama")
    peft_folder(tmp_path, model, **changes)
    with pytest.raises(CheckpointError, match=f"(?s){said}"):
        load_adapter(model, tmp_path)
    assert not any(p.frozen for p in model.parameters()) and "adapter" not in repr(model)


def test_a_tensor_under_two_names_is_refused(tmp_path):
    model, path = read("llama"), tmp_path / "adapter_model.safetensors"
    tensors = peft_folder(tmp_path, model)
    name = f"{ABOVE}self_attn.q_proj.lora_A.weight"
    save_file(tensors | {name.replace("model.model.", "model."): tensors[name] + 1}, path)
    with pytest.raises(CheckpointError, match="is there twice"):
        load_adapter(model, tmp_path)


def test_scales_of_norms_are_those_that_were_written(tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    config = Gemma2Config(vocab_size=9, intermediate_size=4, num_key_value_heads=1, **sizes)
    first, second = Gemma2(config, rng=0), Gemma2(config, rng=0)
    models.add_adapter(first, LoraConfig(r=2, modules_to_save=["input_layernorm"]))
    save_adapter(first, tmp_path)
    load_adapter(second, tmp_path)
    state = second.state_dict()
    assert all([np.array_equal(state[name], array) for name, array in first.state_dict().items()])


def test_a_table_that_is_the_output_too_is_trained_for_both_or_refused(tmp_path):
    first, second = read("gpt2"), read("gpt2")
    models.add_adapter(first, LoraConfig(r=2, modules_to_save=["wte"]))
    first.word.weight.assign(first.word.weight.numpy() + 1)
    save_adapter(first, tmp_path)
    load_adapter(second, tmp_path)
    assert np.array_equal(second.output.weight.value, first.output.weight.value)
    path = tmp_path / "adapter_config.json"
    content = json.loads(path.read_text())
    for wrong, said in (
        ({"ensure_weight_tying": False}, "trains it for one of them alone"),
        ({"modules_to_save": None, "target_modules": ["wte"]}, "adapts it for all of them"),
    ):
        path.write_text(json.dumps(content | wrong))
        with pytest.raises(CheckpointError, match=rf"share word\.weight, and the adapter {said}"):
            load_adapter(read("gpt2"), tmp_path)


def test_an_adapted_model_is_saved_merged_or_as_an_adapter(tmp_path):
    model = read("llama")
    models.add_adapter(model, LoraConfig(r=2, init_lora_weights=False))
    with pytest.raises(ArgumentError, match=r"(?s)has an adapter.*merge_adapter.*save_adapter"):
        model.save_pretrained(tmp_path / "model")
    models.merge_adapter(model)
    model.save_pretrained(tmp_path / "model")
    plain = load_pretrained(tmp_path / "model")
    with db.Graph() as graph:
        one, other = [each.logits(graph, [3, 4, 5]) for each in (model, plain)]
        np.testing.assert_array_equal(one.value, other.value)
    models.unmerge_adapter(model)
    save_adapter(model, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"(?s)an adapter.*load_adapter\(model, "):
        load_pretrained(tmp_path / "adapter")
    models.unfreeze(model, "decoder.norm.weight")
    with pytest.raises(ArgumentError, match=r"decoder\.norm\.weight are trained, and not a part"):
        save_adapter(model, tmp_path / "adapter")


@pytest.mark.slow  # it imports transformers and peft
@pytest.mark.filterwarnings("ignore")  # of both
@pytest.mark.parametrize(
    "name, kind, settings",
    [
        ("llama", "LlamaForCausalLM", {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}),
        ("llama", "LlamaForCausalLM", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
        ("bert-classes", "BertForSequenceClassification", {"task_type": "SEQ_CLS"}),
        ("bert-classes", "BertForSequenceClassification",
         {"target_modules": ["query", "dense", "word_embeddings"], "bias": "all",
          "use_rslora": True}),
        ("gpt2", "GPT2LMHeadModel", {"target_modules": ["c_attn", "c_fc", "wpe"]}),
    ],
)  # fmt: skip
def test_twenty_steps_are_those_of_peft(name, kind, settings, tmp_path):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, kind).from_pretrained(fixtures.FOLDER / name)
    ours = load_pretrained(fixtures.FOLDER / name)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=2, lora_alpha=4, **settings)).eval()
    torch.manual_seed(0)
    for each, tensor in theirs.named_parameters():
        if "lora_B" in each or "lora_embedding_A" in each:
            torch.nn.init.normal_(tensor, std=0.1)
    theirs.save_pretrained(tmp_path)
    load_adapter(ours, tmp_path)
    optimizers = (
        torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], 1e-2),
        optim.AdamW(ours, 1e-2, weight_decay=1e-2),
    )
    rng = np.random.default_rng(0)
    is_classifier, cross_entropy = "bert" in name, torch.nn.functional.cross_entropy
    for _ in range(20):
        texts = [rng.integers(1, ours.config.vocab_size, n) for n in rng.integers(2, 9, 3)]
        expected = torch.zeros(())
        for ids in texts:
            logits = theirs(input_ids=torch.tensor(ids[None])).logits[0]
            expected = expected + (
                cross_entropy(logits, torch.tensor(ids[0] % 2)) if is_classifier
                else cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum")
            ) / len(texts)  # fmt: skip
        expected.backward()
        with db.Graph() as graph:
            losses = [
                ours.loss(graph, ids, int(ids[0]) % 2) if is_classifier else ours.loss(graph, ids)
                for ids in texts
            ]
            loss = F.mean(F.stack(losses))
            graph.backward(loss)
            assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    theirs.save_pretrained(tmp_path / "theirs")
    save_adapter(ours, tmp_path / "ours")
    files = [
        load_file(tmp_path / each / "adapter_model.safetensors") for each in ("theirs", "ours")
    ]
    for each, array in files[1].items():
        if not each.endswith("key.bias"):  # whose gradient is 0 but for rounding
            np.testing.assert_allclose(array, files[0][each], rtol=1e-4, atol=1e-5)
    bare = getattr(transformers, kind).from_pretrained(fixtures.FOLDER / name)
    again = peft.PeftModel.from_pretrained(bare, tmp_path / "ours").eval()
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(again(input_ids=ids).logits, theirs(input_ids=ids).logits)
