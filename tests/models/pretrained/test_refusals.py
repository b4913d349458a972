"""Folders that are refused: each error has one fix, which helps, and names one line."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models import pretrained
from dynbatch.models.pretrained import load_pretrained
from dynbatch.text import WordPiece
from tests.models.pretrained import fixtures

WEIGHTS = "model.safetensors"


def changed(name, folder, change=lambda tensors: None, **config):
    """A copy of a fixture with other tensors, and other fields of config.json."""
    shutil.copytree(fixtures.FOLDER / name, folder, dirs_exist_ok=True)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | config))
    return folder


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(folder)
    said = str(caught.value)
    assert str(folder) in said and said.count("nothing was loaded") == 1
    assert said.count("fix:") == said.count("made at") == 1, said
    return said


UNTRUNCATED = {"rope_type": "yarn", "factor": 2.0, "truncate": False}
CONFIGURATIONS = [
    ("bert", {"position_embedding_type": "relative_key"}, "encoder with absolute positions"),
    ("bert", {"id2label": {"a": "b"}}, "give id2label=dict(enumerate(names))"),
    ("bert", {"hidden_size": 0}, "an integer, 1 or more"),
    ("bert", {"hidden_act": "swoosh"}, "choose a checkpoint with one of these"),
    ("roberta-untied", {"num_attention_heads": 3}, "choose a divisor"),
    ("gpt2", {"add_cross_attention": True}, "choose a checkpoint of the published GPT-2"),
    ("gpt2", {"embd_pdrop": 1.5}, "give p such a number"),
    ("llama", {"hidden_act": "mish"}, "choose a checkpoint with one of these"),
    ("llama", {"partial_rotary_factor": 0.5}, "choose a checkpoint without it"),
    ("qwen3-next", {"num_experts": 4}, "num_experts 0, or whose mlp_only_layers are all"),
    ("qwen3-next", {"hidden_act": "gelu"}, "choose a checkpoint without it"),
    ("qwen3-next", {"layer_types": ["linear_attention"]}, "whose layers are of these types"),
    ("qwen3-next", {"head_dim": 12}, "of another head_dim or partial_rotary_factor"),
    ("distilbert", {"layer_norm_eps": 1e-5}, "choose a checkpoint without it"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "longrope", "factor": 2}},
        "that dynbatch does not have",
    ),
    ("gemma3", {"rope_parameters": {"full_attention": UNTRUNCATED}}, "leave truncate out"),
    ("gemma3", {"rope_scaling": UNTRUNCATED}, "leave truncate out"),
    ("modernbert", {"rope_parameters": {"sliding_attention": UNTRUNCATED}}, "leave truncate out"),
    ("t5", {"feed_forward_proj": "gated-mish"}, "choose a checkpoint with one"),
    ("marian", {"share_encoder_decoder_embeddings": False}, "no class here reads others"),
    ("marian", {"tie_word_embeddings": False}, "no class here reads others"),
    ("marian", {"d_model": "many"}, "take another copy"),
    ("gpt2", {"model_type": "gpt3"}, "choose a model of"),
]


@pytest.mark.parametrize(("name", "config", "fix"), CONFIGURATIONS)
def test_a_configuration_is_refused_with_one_fix(name, config, fix, tmp_path):
    assert fix in refusal(changed(name, tmp_path, **config)).partition("fix:")[2]


@pytest.mark.parametrize("kind", [pretrained.Gemma3Config, pretrained.ModernBertConfig])
def test_positions_of_two_types_of_layer_are_read_from_their_parts_alone(kind):
    for rope in ({"rope_theta": 5.0, "rope_type": "default"}, {"full_attention": 5}, [1]):
        with pytest.raises(ArgumentError, match="rope_parameters is"):
            kind(others={"rope_parameters": rope})
    with pytest.raises(ArgumentError, match=r"partial_rotary_factor is 0\.5"):
        kind(others={"partial_rotary_factor": 0.5})


@pytest.mark.parametrize("kind", [pretrained.LlamaConfig, pretrained.Gemma3Config])
def test_rope_scaling_goes_before_rope_parameters(kind):
    scaling, rope = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 2.0}
    parts = {"full_attention": rope} if kind is pretrained.Gemma3Config else rope
    config = kind(
        rope_scaling=scaling | {"partial_rotary_factor": 1.0}, others={"rope_parameters": parts}
    )
    assert config.rotary("full_attention")["scaling"] == scaling


@pytest.mark.parametrize(
    ("rope_scaling", "rope_parameters", "share"),
    [
        ({"type": "linear", "factor": 4.0}, {"partial_rotary_factor": 1.0}, 0.25),
        ({"type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}, None, 0.5),
        (None, {"type": "linear", "factor": 4.0, "partial_rotary_factor": 1.0}, 1.0),
    ],
)
def test_positions_in_older_forms_are_written_in_the_newer_one(
    rope_scaling, rope_parameters, share
):
    config = pretrained.Qwen3NextConfig(
        num_experts=0, rope_scaling=rope_scaling, others={"rope_parameters": rope_parameters}
    )
    written = config.to_json()["rope_parameters"]
    assert written == {
        "rope_type": "linear", "factor": 4.0, "partial_rotary_factor": share, "rope_theta": 10000.0,
    }  # fmt: skip
    again = pretrained.Qwen3NextConfig(num_experts=0, others={"rope_parameters": written})
    assert again.rotary("full_attention")["rotary_dim"] == int(256 * share)


def add_one(name):
    def change(tensors):
        tensors[name] = next(x for k, x in tensors.items() if k.endswith(TABLES)) + 1

    return change


TABLES = ("wte.weight", "word_embeddings.weight", "shared.weight")
HEADS = {
    "gpt2": "lm_head.weight",
    "bert": "cls.predictions.decoder.weight",
    "roberta-untied": "lm_head.decoder.weight",
    "t5-v1_1": "lm_head.weight",
}


@pytest.mark.parametrize("name", HEADS)
def test_an_output_of_its_own_in_a_tied_folder_is_read_by_the_fix(name, tmp_path):
    folder = changed(name, tmp_path, add_one(HEADS[name]), tie_word_embeddings=True)
    said = refusal(folder)
    assert "choose the class" not in said and "tie_word_embeddings=False" in said
    model = load_pretrained(
        changed(name, tmp_path, add_one(HEADS[name]), tie_word_embeddings=False)
    )
    assert f"{type(model).__name__}.from_pretrained(folder, tie_word_embeddings=False)" in said
    table = next(x for k, x in load_file(folder / WEIGHTS).items() if k.endswith(TABLES))
    assert np.array_equal(model.output.weight.value, table + 1)


def test_a_table_that_no_class_has_is_not_promised(tmp_path):
    said = refusal(changed("marian", tmp_path, add_one("model.encoder.embed_tokens.weight")))
    assert "no class here has both" in said and "tie_word_embeddings" not in said


def reshaped(tensors):
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:7]


def of_integers(tensors):
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].astype(np.int8)


def renamed(tensors):
    tensors["another.weight"] = tensors.pop("transformer.wpe.weight")


@pytest.mark.parametrize(
    ("change", "fix", "is_other_class"),
    [
        (reshaped, 'the config.json that was written with them; or new=["position.{}"]', False),
        (of_integers, "saved as float32, float16 or bfloat16", False),
        (renamed, "choose the class that wrote them", True),
    ],
)
def test_tensors_are_refused_with_what_helps_against_their_fault(
    change, fix, is_other_class, tmp_path
):
    said = refusal(changed("gpt2", tmp_path, change))
    assert fix in said and ("choose the class" in said) == is_other_class


def test_a_bias_beside_that_of_an_output_of_its_own_is_not_read():
    name = "bert-untied"
    theirs = load_file(fixtures.FOLDER / name / WEIGHTS)
    model = pretrained.BertForMaskedWords.from_pretrained(fixtures.FOLDER / name)
    bias, unread = theirs["cls.predictions.decoder.bias"], theirs["cls.predictions.bias"]
    assert not np.array_equal(bias, unread) and np.array_equal(model.bias.value, bias)


def test_a_tokenizer_without_its_marks_is_refused_with_one_fix(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(CheckpointError) as caught:
        WordPiece.from_pretrained(tmp_path)
    said = str(caught.value)
    assert "'[CLS]' is not among its 3 pieces" in said and str(tmp_path) in said
    assert said.count("fix:") == said.count("made at") == 1, said
