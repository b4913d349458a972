"""Random tiny models of `transformers`, beside ours that read their folders.

    python -m tests.models.pretrained.random_configurations [FIRST-LAST] [FAMILY …]

compares the configurations of these seeds (by default 0-14) of each family, and prints how many
agree and the largest difference of logits. For each: logits of sentences in one mini-batch; ours
written, read by `transformers` and equal; text written greedily and with beams.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

import dynbatch as db
from dynbatch.models.pretrained import load_pretrained

VOCABULARY = 40
LENGTHS = (9, 1, 23, 4)
TOLERANCE = 1e-4

Draw = Callable[..., Any]


def rope(draw: Draw, theta: float | None = None, is_part: bool = False) -> dict[str, Any]:
    """Settings of rotary positions of any type.

    Args:
        is_part: whether they are for a type of layer. Yarn has no `truncate` then, which
            `transformers` does not read there (5.24, modeling_rope_utils.py, line 475) and we
            refuse.
    """
    base = draw(100.0, 10000.0, 500000.0) if theta is None else theta
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    truncate = {"truncate": False}
    return {
        "rope_theta": base,
        **draw(
            {"rope_type": "default"},
            {"rope_type": "linear", "factor": 2.5},
            {"rope_type": "dynamic", "factor": 2.0},
            {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 24,
            },
            yarn,
            yarn | {"beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.3},
            yarn | {"mscale": 0.7, "mscale_all_dim": 1.1} | ({} if is_part else truncate),
        ),
    }  # fmt: skip


def rope_parts(draw: Draw) -> dict[str, Any]:
    """Settings of rotary positions for both types of layer."""
    full = rope(draw, is_part=True)
    return {"full_attention": full, "sliding_attention": rope(draw, 100.0, is_part=True)}


def decoder(draw: Draw) -> dict[str, Any]:
    """Settings of all decoders."""
    heads, kv_heads = draw((4, 2), (4, 1), (4, 4), (2, 1), (6, 2))
    head_dim = draw(4, 6, 8, 10)
    return {
        "vocab_size": VOCABULARY, "hidden_size": heads * draw(4, 6, 8), "head_dim": head_dim,
        "num_hidden_layers": draw(1, 2, 3), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": draw(12, 24, 33),
        "max_position_embeddings": 64, "rms_norm_eps": draw(1e-6, 1e-5, 0.1),
        "tie_word_embeddings": draw(True, False), "rope_parameters": rope(draw),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def layer_types(draw: Draw, layers: int) -> list[str]:
    return [draw("sliding_attention", "full_attention") for _ in range(layers)]


# Windows of one token are left out: with a cache `transformers` reads all tokens then.
def mixed(draw: Draw, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with layers that take turns."""
    types = draw(None, layer_types(draw, settings["num_hidden_layers"]))
    return settings | {"layer_types": types, "sliding_window": draw(2, 3, 5, 30)}


GATES = ("silu", "gelu", "relu", "gelu_pytorch_tanh")


def llama(draw: Draw) -> dict[str, Any]:
    biases = {"attention_bias": draw(True, False), "mlp_bias": draw(True, False)}
    return decoder(draw) | biases | {"hidden_act": draw(*GATES)}


def mistral(draw: Draw) -> dict[str, Any]:
    return decoder(draw) | {"hidden_act": draw(*GATES), "sliding_window": draw(None, 2, 3, 7)}


def qwen2(draw: Draw) -> dict[str, Any]:
    settings = mixed(draw, decoder(draw)) | {"hidden_act": draw(*GATES)}
    has_windows = draw(True, False)
    if not has_windows:
        settings["layer_types"] = None
    if draw(True, False):
        settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    return settings | {"use_sliding_window": has_windows, "max_window_layers": draw(0, 1, 2)}


def qwen3(draw: Draw) -> dict[str, Any]:
    return qwen2(draw) | {"attention_bias": draw(True, False)}


def qwen3_next(draw: Draw) -> dict[str, Any]:
    settings = decoder(draw) | {"attention_bias": draw(True, False), "num_experts": 0}
    heads, shared = draw((1, 1), (2, 1), (2, 2), (1, 3))
    settings["rope_parameters"]["partial_rotary_factor"] = draw(0.25, 0.5, 1.0)
    settings["head_dim"] = 8
    layers = settings["num_hidden_layers"]
    # One at least is of attention: without any, `transformers` cannot generate.
    types = [draw("linear_attention", "full_attention") for _ in range(layers - 1)]
    types.insert(draw(0, layers - 1), "full_attention")
    return settings | {
        "linear_num_key_heads": heads, "linear_num_value_heads": heads * shared,
        "linear_key_head_dim": draw(3, 4, 8), "linear_value_head_dim": draw(4, 5, 8),
        "linear_conv_kernel_dim": draw(2, 3, 4), "layer_types": types,
    }  # fmt: skip


def gemma2(draw: Draw) -> dict[str, Any]:
    return mixed(draw, decoder(draw)) | {
        "hidden_activation": draw("gelu_pytorch_tanh", "gelu", "silu"),
        "query_pre_attn_scalar": draw(4, 16, 144), "attention_bias": draw(True, False),
        "attn_logit_softcapping": draw(None, 0.5, 2.0, 50.0),
        "final_logit_softcapping": draw(None, 1.0, 30.0),
    }  # fmt: skip


def gemma3(draw: Draw) -> dict[str, Any]:
    settings = gemma2(draw) | {"attn_logit_softcapping": None}
    parts = rope_parts(draw)
    return settings | {"rope_parameters": parts}


def mamba2(draw: Draw) -> dict[str, Any]:
    expand, groups, of_group = draw(1, 2, 3), draw(1, 2, 3), draw(1, 2)
    heads, head_dim = groups * of_group * expand, draw(2, 4, 6)
    return {
        "vocab_size": VOCABULARY, "hidden_size": heads * head_dim // expand, "expand": expand,
        "num_heads": heads, "head_dim": head_dim, "n_groups": groups,
        "num_hidden_layers": draw(1, 2, 3), "state_size": draw(3, 4, 8),
        "conv_kernel": draw(2, 3, 4), "use_bias": draw(True, False),
        "use_conv_bias": draw(True, False), "layer_norm_epsilon": draw(1e-5, 0.1),
        "time_step_limit": draw((0.0, float("inf")), (0.05, 0.7)), "chunk_size": draw(4, 256),
        "tie_word_embeddings": draw(True, False),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")


def encoder(draw: Draw) -> dict[str, Any]:
    """Settings of BERT's kin; norms of 3 features would lose digits in either library."""
    heads = draw(1, 2, 4)
    return {
        "vocab_size": VOCABULARY, "hidden_size": draw(8, 12, 16), "hidden_act": "gelu",
        "num_hidden_layers": draw(1, 2, 3), "num_attention_heads": heads,
        "intermediate_size": draw(12, 24, 33), "max_position_embeddings": draw(32, 40),
        "layer_norm_eps": draw(1e-12, 1e-5), "tie_word_embeddings": draw(True, False),
    }  # fmt: skip


def distilbert(draw: Draw) -> dict[str, Any]:
    ours = encoder(draw)
    names = {
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    }  # fmt: skip
    settings = {names.get(name, name): value for name, value in ours.items()}
    del settings["hidden_act"], settings["layer_norm_eps"]
    return settings | {
        "activation": draw("gelu", "relu"), "sinusoidal_pos_embds": draw(True, False),
    }  # fmt: skip


def mpnet(draw: Draw) -> dict[str, Any]:
    return encoder(draw) | {"hidden_act": draw(*ACTIVATIONS)}


def modernbert(draw: Draw) -> dict[str, Any]:
    heads, layers = draw(1, 2, 4), draw(1, 2, 4)
    has = {
        name: draw(True, False)
        for name in (
            "norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias",
            "tie_word_embeddings",
        )
    }  # fmt: skip
    parts = rope_parts(draw)
    return has | {
        "vocab_size": VOCABULARY, "hidden_size": heads * draw(4, 6, 8),
        "num_attention_heads": heads, "num_hidden_layers": layers,
        "intermediate_size": draw(12, 24, 33), "max_position_embeddings": 64,
        "hidden_activation": draw(*GATES), "classifier_activation": draw(*ACTIVATIONS),
        "norm_eps": draw(1e-5, 1e-3), "local_attention": draw(2, 5, 8),
        "layer_types": draw(None, layer_types(draw, layers)), "rope_parameters": draw(None, parts),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    }  # fmt: skip


def bart(draw: Draw) -> dict[str, Any]:
    width = 4 * draw(2, 4, 6)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", draw(1, 2)), ("attention_heads", draw(1, 2, 4)), ("ffn_dim", draw(12, 20)),
        )
    }  # fmt: skip
    return sides | {
        "vocab_size": VOCABULARY, "d_model": width, "max_position_embeddings": draw(32, 64),
        "activation_function": draw(*ACTIVATIONS), "scale_embedding": draw(True, False),
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_bos_token_id": draw(None, 0), "forced_eos_token_id": 2,
    }  # fmt: skip


class Kind(NamedTuple):
    """A family: its class and configuration in `transformers`, and how settings are drawn."""

    model: str
    config: str
    settings: Callable[[Draw], dict[str, Any]]


FAMILIES = {
    "llama": Kind("LlamaForCausalLM", "LlamaConfig", llama),
    "mistral": Kind("MistralForCausalLM", "MistralConfig", mistral),
    "qwen2": Kind("Qwen2ForCausalLM", "Qwen2Config", qwen2),
    "qwen3": Kind("Qwen3ForCausalLM", "Qwen3Config", qwen3),
    "qwen3-next": Kind("Qwen3NextForCausalLM", "Qwen3NextConfig", qwen3_next),
    "gemma2": Kind("Gemma2ForCausalLM", "Gemma2Config", gemma2),
    "gemma3": Kind("Gemma3ForCausalLM", "Gemma3TextConfig", gemma3),
    "mamba2": Kind("Mamba2ForCausalLM", "Mamba2Config", mamba2),
    "distilbert": Kind("DistilBertModel", "DistilBertConfig", distilbert),
    "distilbert-words": Kind("DistilBertForMaskedLM", "DistilBertConfig", distilbert),
    "distilbert-classes": Kind(
        "DistilBertForSequenceClassification", "DistilBertConfig", distilbert
    ),
    "distilbert-tokens": Kind("DistilBertForTokenClassification", "DistilBertConfig", distilbert),
    "mpnet": Kind("MPNetModel", "MPNetConfig", mpnet),
    "mpnet-words": Kind("MPNetForMaskedLM", "MPNetConfig", mpnet),
    "mpnet-classes": Kind("MPNetForSequenceClassification", "MPNetConfig", mpnet),
    "mpnet-tokens": Kind("MPNetForTokenClassification", "MPNetConfig", mpnet),
    "modernbert": Kind("ModernBertModel", "ModernBertConfig", modernbert),
    "modernbert-words": Kind("ModernBertForMaskedLM", "ModernBertConfig", modernbert),
    "bart": Kind("BartForConditionalGeneration", "BartConfig", bart),
    "mbart": Kind("MBartForConditionalGeneration", "MBartConfig", bart),
}


def theirs(family: str, seed: int) -> Any:
    """A random model of `transformers`, with weights so large that every term shows."""
    rng = np.random.default_rng(seed)

    def draw(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kind = FAMILIES[family]
    settings = kind.settings(draw)
    if settings.get("head_dim") is None:
        settings.pop("head_dim", None)
    config = getattr(transformers, kind.config)(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, kind.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.4 if parameter.ndim < 2 else 1.5 / parameter.shape[-1] ** 0.5
            parameter.add_(scale * torch.randn(parameter.shape))
    return model


def their_logits(model: Any, sentence: dict[str, Any]) -> Any:
    given = {name: torch.tensor(ids)[None] for name, ids in sentence.items()}
    with torch.no_grad():
        output = model(**given)
    return (output["logits"] if "logits" in output else output[0])[0].numpy()


def our_logits(graph: db.Graph, model: Any, sentence: dict[str, Any]) -> db.Node:
    node: db.Node = getattr(model, "logits", model)(graph, *sentence.values())
    return node


def sentences(model: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    drawn = [{"input_ids": rng.integers(3, VOCABULARY, length)} for length in LENGTHS]
    if model.config.is_encoder_decoder:
        for sentence in drawn:
            sentence["decoder_input_ids"] = rng.integers(3, VOCABULARY, rng.integers(1, 20))
    return drawn


def compared(family: str, seed: int, folder: Path, generates: bool = True) -> float:
    """The largest difference of logits of one configuration, each way.

    Args:
        generates: whether what is written is compared as well.
    """
    model = theirs(family, seed)
    model.save_pretrained(folder / "theirs")
    ours = load_pretrained(folder / "theirs")
    drawn = sentences(model)
    with db.Graph(grad=False) as graph:
        nodes = [our_logits(graph, ours, sentence) for sentence in drawn]
        graph.forward()
        found = [node.value for node in nodes]
    ours.save_pretrained(folder / "ours")
    again, report = type(model).from_pretrained(
        folder / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values()), report
    worst = 0.0
    for reader in (model, again.eval()):
        for sentence, values in zip(drawn, found, strict=True):
            expected = their_logits(reader, sentence)
            assert expected.shape == values.shape
            worst = max(worst, float(np.abs(expected - values).max(initial=0)))
    read = load_pretrained(folder / "ours").state_dict()
    for name, value in ours.state_dict().items():
        assert np.array_equal(read[name], value), name
    if generates and model.can_generate() and hasattr(model, "lm_head"):
        assert_generates_alike(model, ours, drawn, folder)
    return worst


def assert_generates_alike(
    model: Any, ours: Any, drawn: list[dict[str, Any]], folder: Path
) -> None:
    """Assert that both write the same ids, greedily and with beams."""
    prompts = [sentence["input_ids"] for sentence in drawn[::2]]
    # Of a token behind a cache Mamba-2's dt has no limits there, which it has without a cache.
    is_limited = getattr(model.config, "time_step_limit", (0.0,))[0] > 0
    for beams in (1, 3):
        config = db.GenerationConfig.from_pretrained(
            folder / "theirs", max_new_tokens=6, num_beams=beams
        )
        results = db.generate(ours, prompts, config)
        for prompt, (best, *_) in zip(prompts, results, strict=True):
            with torch.no_grad():
                ids = torch.tensor(prompt)[None]
                made = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, num_beams=beams,
                    do_sample=False, use_cache=not is_limited,
                )[0].tolist()  # fmt: skip
            made = made[1:] if model.config.is_encoder_decoder else made[len(prompt) :]
            assert list(best.tokens) == made, (beams, prompt, list(best.tokens), made)


def main(arguments: list[str]) -> int:
    first, last = map(int, (arguments or ["0-14"])[0].split("-"))
    count = last + 1 - first
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    failures = 0
    for family in arguments[1:] or FAMILIES:
        worst, fine = 0.0, 0
        for seed in range(first, last + 1):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    difference = compared(family, seed, Path(folder))
                    assert difference <= TOLERANCE, f"logits differ by {difference:.2e}"
                except Exception as error:
                    print(f"{family} {seed}: {type(error).__name__}: {str(error)[:600]}")
                    failures += 1
                    continue
            worst, fine = max(worst, difference), fine + 1
        print(f"{family}: {fine} of {count} agree, logits to {worst:.1e}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
