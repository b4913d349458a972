"""Makes `fixtures/`: tiny random checkpoints of all families, as `transformers` saves them.

    python -m tests.models.pretrained.make_fixtures [NAME …]   # needs transformers >= 5 and torch

Each folder holds what Hugging Face's `save_pretrained` writes, `expected.npz` with sentences and
what the model gives for each of them alone (float32, weights read back from the folder), and in
some `gradients.safetensors`, the gradient of the summed cross-entropy at `labels`, by name.
Weights are drawn so large that every term shows in the logits. Tests read the folders without
`transformers`; see `tests/models/pretrained/fixtures.py`.
"""

import json
import math
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parent / "fixtures"
LENGTHS = (7, 1, 26, 3)  # of the sentences
TARGET_LENGTHS = (4, 11, 1, 25)  # of encoder-decoders, without the token that begins them
VOCABULARY, WIDTH, INNER, LONGEST = 40, 16, 24, 48
FIRST_WORD = 3  # below are pad, begin and end

State = dict[str, torch.Tensor]


def unchanged(state: State, config: dict[str, Any]) -> None:
    """Leaves the folder as `transformers` wrote it."""


@dataclass(frozen=True)
class Case:
    """A checkpoint.

    Args:
        model:     its class in `transformers`.
        config:    settings.
        dtype:     of the stored tensors.
        shard:     the largest size of a file; "" for one file.
        gradients: whether they are stored.
        rewrite:   makes of the stored tensors and settings what an older version would have saved.
    """

    model: str
    config: dict[str, Any]
    dtype: torch.dtype = torch.float32
    shard: str = ""
    gradients: bool = False
    rewrite: Callable[[State, dict[str, Any]], None] = unchanged


def bert_of_2018(state: State, config: dict[str, Any]) -> None:
    """Old names of LayerNorm's parameters, the buffer of positions, and the tied decoder."""
    for name in list(state):
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        state[old.replace("LayerNorm.bias", "LayerNorm.beta")] = state.pop(name)
    state["bert.embeddings.position_ids"] = torch.arange(LONGEST)[None]
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    del config["tie_word_embeddings"]


def roberta_of_2019(state: State, config: dict[str, Any]) -> None:
    """The buffer of positions, a pooler that nothing reads, and the tied decoder by its name."""
    state["roberta.embeddings.position_ids"] = torch.arange(LONGEST)[None]
    state["roberta.pooler.dense.weight"] = torch.ones(WIDTH, WIDTH)
    state["roberta.pooler.dense.bias"] = torch.ones(WIDTH)
    state["lm_head.decoder.weight"] = state["roberta.embeddings.word_embeddings.weight"]
    state["lm_head.decoder.bias"] = state["lm_head.bias"]
    del config["tie_word_embeddings"]


def gpt2_of_2019(state: State, config: dict[str, Any]) -> None:
    """No prefix, and the causal masks as buffers: the files that OpenAI published."""
    for name in list(state):
        state[name.removeprefix("transformer.")] = state.pop(name)
    for layer in range(config["n_layer"]):
        mask = torch.ones(LONGEST, LONGEST).tril()
        state[f"h.{layer}.attn.bias"] = mask[None, None]
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    del config["tie_word_embeddings"], config["dtype"]


def llama_of_2024(state: State, config: dict[str, Any]) -> None:
    """Rotary settings in two keys, as in the files that Meta published; old rotary buffers."""
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    del config["head_dim"]
    for layer in range(config["num_hidden_layers"]):
        state[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(3)


def t5_of_2021(state: State, config: dict[str, Any]) -> None:
    """A tied embedding under each of its names, and a table in the decoder's first cross-attention
    that nothing reads, as in the files of t5-small."""
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"]
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    state[name] = torch.ones(config["relative_attention_num_buckets"], config["num_heads"])
    for key in ("tie_word_embeddings", "scale_decoder_outputs", "is_gated_act", "dense_act_fn"):
        config.pop(key)


def t5_of_version_1_1(state: State, config: dict[str, Any]) -> None:
    """The setting says that output and embedding are two tables."""
    config["tie_word_embeddings"] = False
    for key in ("scale_decoder_outputs", "is_gated_act", "dense_act_fn"):
        config.pop(key)


def marian_of_2020(state: State, config: dict[str, Any]) -> None:
    """Names for the tied table everywhere, and the sinusoids stored: Opus-MT's files."""
    frequencies = 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    angles = torch.arange(LONGEST)[:, None] * frequencies
    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_tokens.weight"] = state["model.shared.weight"]
        state[f"model.{side}.embed_positions.weight"] = torch.cat([angles.sin(), angles.cos()], 1)
    state["lm_head.weight"] = state["model.shared.weight"]
    for key in ("tie_word_embeddings", "share_encoder_decoder_embeddings", "decoder_vocab_size"):
        config.pop(key)


BERT = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": INNER, "max_position_embeddings": LONGEST,
}  # fmt: skip
ROBERTA = BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
CLASSES = {"num_labels": 3}
UNTIED = {"tie_word_embeddings": False}  # in T5, which is tied all the same: without the scale
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": LONGEST,
    "bos_token_id": 2, "eos_token_id": 2,
}  # fmt: skip
ROPE = {  # wavelengths 6, 135 and 2917 with heads of 6: one is kept, one between, one stretched
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
}  # fmt: skip
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": INNER, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": INNER,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_parameters": ROPE,
}  # fmt: skip
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "head_dim": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": WIDTH,
    "max_position_embeddings": 64, "sliding_window": 5, "tie_word_embeddings": True,
}  # fmt: skip
TURNS = {"layer_types": ["sliding_attention", "full_attention"]}
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
GEMMA = DECODER | {"query_pre_attn_scalar": 9, "final_logit_softcapping": 3.0}
T5 = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 6, "d_ff": INNER, "num_layers": 2,
    "num_decoder_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
MARIAN = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER, "max_position_embeddings": LONGEST, "scale_embedding": True,
    "activation_function": "swish", "pad_token_id": VOCABULARY - 1,
    "decoder_start_token_id": VOCABULARY - 1, "eos_token_id": 0,
}  # fmt: skip
BART = MARIAN | {
    "activation_function": "gelu", "scale_embedding": False, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip

CASES = {
    "bert": Case("BertForMaskedLM", BERT, gradients=True),
    "bert-untied": Case("BertForMaskedLM", BERT | UNTIED),
    "bert-encoder-bfloat16": Case("BertModel", BERT, torch.bfloat16, "6KB"),
    "bert-of-2018": Case("BertForPreTraining", BERT, rewrite=bert_of_2018),
    "bert-classes": Case("BertForSequenceClassification", BERT | CLASSES),
    "bert-token-classes": Case("BertForTokenClassification", BERT | CLASSES, torch.bfloat16),
    "roberta": Case("RobertaForMaskedLM", ROBERTA, shard="8KB", gradients=True),
    "roberta-untied": Case("RobertaForMaskedLM", ROBERTA | UNTIED),
    "roberta-classes-bfloat16": Case(
        "RobertaForSequenceClassification", ROBERTA | CLASSES, torch.bfloat16
    ),
    "roberta-of-2019": Case(
        "RobertaForMaskedLM", ROBERTA, torch.bfloat16, rewrite=roberta_of_2019
    ),
    "gpt2": Case("GPT2LMHeadModel", GPT2, gradients=True),
    "gpt2-bfloat16": Case("GPT2LMHeadModel", GPT2 | {"n_inner": INNER}, torch.bfloat16, "8KB"),
    "gpt2-untied": Case("GPT2LMHeadModel", GPT2 | UNTIED, torch.bfloat16),
    "gpt2-of-2019": Case("GPT2LMHeadModel", GPT2, rewrite=gpt2_of_2019),
    "llama": Case("LlamaForCausalLM", LLAMA, gradients=True),
    "llama-head-dim": Case("LlamaForCausalLM", LLAMA | {"head_dim": 8, "rope_parameters": None}),
    "llama-tied-bfloat16": Case(
        "LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}, torch.bfloat16, "12KB",
        rewrite=llama_of_2024,
    ),
    "distilbert": Case(
        "DistilBertForMaskedLM",
        {
            "vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": 4,
            "hidden_dim": INNER, "max_position_embeddings": LONGEST,
        },
    ),
    "mpnet": Case("MPNetForMaskedLM", {**BERT, "layer_norm_eps": 1e-5}, torch.bfloat16),
    "modernbert": Case(
        "ModernBertForMaskedLM",
        {
            **BERT, "num_hidden_layers": 3, "local_attention": 6, "mlp_bias": True,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "bart": Case("BartForConditionalGeneration", BART),
    "mbart": Case(
        "MBartForConditionalGeneration", BART | {"scale_embedding": True}, torch.bfloat16
    ),
    "mistral": Case("MistralForCausalLM", DECODER | {"tie_word_embeddings": False}),
    "qwen2": Case("Qwen2ForCausalLM", DECODER | TURNS | {"use_sliding_window": True}),
    "qwen3": Case(
        "Qwen3ForCausalLM", DECODER | {"attention_bias": True, "rope_parameters": YARN},
        torch.bfloat16,
    ),
    "qwen3-next": Case(
        "Qwen3NextForCausalLM", DECODER | {
            "layer_types": ["linear_attention", "full_attention"], "num_experts": 0,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3,
            "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3, "head_dim": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8,
        },
        gradients=True,
    ),
    "gemma2": Case("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 1.5}),
    "gemma3": Case(
        "Gemma3ForCausalLM", GEMMA | TURNS | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    "t5": Case("T5ForConditionalGeneration", T5, gradients=True),
    "t5-unscaled": Case("T5ForConditionalGeneration", T5 | UNTIED, torch.bfloat16),
    "t5-of-2021": Case("T5ForConditionalGeneration", T5, torch.bfloat16, rewrite=t5_of_2021),
    "t5-v1_1": Case(
        "T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}, gradients=True,
        rewrite=t5_of_version_1_1,
    ),
    "t5-v1_1-bfloat16": Case(
        "T5ForConditionalGeneration",
        T5 | UNTIED | {"feed_forward_proj": "gated-gelu"}, torch.bfloat16,
        "10KB",
    ),
    "marian": Case("MarianMTModel", MARIAN, gradients=True),
    "marian-bfloat16": Case("MarianMTModel", MARIAN, torch.bfloat16, "10KB"),
    "marian-of-2020": Case("MarianMTModel", MARIAN, torch.bfloat16, rewrite=marian_of_2020),
}  # fmt: skip


def drawn(case: Case) -> Any:
    """A model whose parameters are all random, norms and biases among them."""
    kind = getattr(transformers, case.model)
    config = kind.config_class(**case.config)
    config._attn_implementation = "eager"  # others leave bounds of scores out
    model = kind(config).eval()
    if case.config.get("feed_forward_proj") == "gated-gelu":  # untied, in every version 1.1
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        model.all_tied_weights_keys.pop("lm_head.weight", None)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() or ".ln_" in name:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.3)
            elif parameter.ndim == 1:
                parameter.normal_(0.0, 0.3)
            elif "embed" in name or "shared" in name or ".wte" in name or "wpe" in name:
                parameter.normal_(0.0, 0.7)
            else:
                parameter.normal_(0.0, 1.2 / math.sqrt(parameter.shape[1]))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.to(case.dtype)


def save(case: Case, model: Any, folder: Path) -> Any:
    """Write the checkpoint; return the model read back from it, in float32."""
    model.save_pretrained(folder, **({"max_shard_size": case.shard} if case.shard else {}))
    if case.rewrite is not unchanged:
        state, config = {}, json.loads((folder / "config.json").read_text())
        for path in sorted(folder.glob("*.safetensors")):
            state |= load_file(path)
            path.unlink()
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
        case.rewrite(state, config)
        state = {name: tensor.clone() for name, tensor in state.items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(config, indent=2, sort_keys=True)
        (folder / "config.json").write_text(text + "\n")
    read, report = type(model).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise RuntimeError(f"{folder.name}: transformers cannot read it back: {report}")
    return read.eval()


def words(length: int) -> torch.Tensor:
    return torch.randint(FIRST_WORD, VOCABULARY - 1, (1, length))


def run(model: Any, length: int, target_length: int) -> tuple[dict[str, Any], torch.Tensor]:
    """A sentence, the model's output for it, and its loss."""
    config = model.config
    inputs = {"input_ids": words(length)}
    if config.model_type == "bert":
        inputs["token_type_ids"] = (torch.arange(length) >= length // 2).long()[None]
    if config.is_encoder_decoder:
        start = torch.tensor([[config.decoder_start_token_id]])
        inputs["decoder_input_ids"] = torch.cat([start, words(target_length)], 1)
    result = model(**inputs, output_hidden_states=True)
    arrays = {name: ids[0].numpy() for name, ids in inputs.items()}
    if "last_hidden_state" in result:
        return arrays | {
            "hidden": result.last_hidden_state[0],
            "pooled": result.pooler_output[0],
        }, result.last_hidden_state.sum()
    hidden = result.decoder_hidden_states if config.is_encoder_decoder else result.hidden_states
    logits = result["prediction_logits" if "prediction_logits" in result else "logits"][0]
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return arrays | {"hidden": hidden[-1][0], "logits": logits, "labels": labels}, loss


def make(name: str, case: Case) -> int:
    """Write the folder of a case; return its size in bytes."""
    torch.manual_seed(zlib.crc32(name.encode()))
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model = save(case, drawn(case), folder)
    expected, total = {}, torch.tensor(0.0)
    for place, lengths in enumerate(zip(LENGTHS, TARGET_LENGTHS, strict=True)):
        arrays, loss = run(model, *lengths)
        for key, array in arrays.items():
            expected[f"{key}.{place}"] = np.asarray(torch.as_tensor(array).detach())
        total = total + loss
    np.savez_compressed(folder / "expected.npz", loss=np.float32(total.item()), **expected)
    if case.gradients:
        total.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        save_file(gradients, folder / "gradients.safetensors")
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = sys.argv[1:] or CASES
    sizes = {name: make(name, CASES[name]) for name in names}
    for name, size in sizes.items():
        print(f"{size / 1000:8.1f} kB  {name}")
    print(f"{sum(sizes.values()) / 1000:8.1f} kB  in all")


if __name__ == "__main__":
    main()
