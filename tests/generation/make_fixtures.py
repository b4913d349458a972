"""Makes `fixtures/`: what `transformers` generates with tiny checkpoints, and makes of logits.

    python -m tests.generation.make_fixtures                   # needs transformers >= 5 and torch

`beams.json`: for checkpoints of `tests/models/pretrained/fixtures` the tokens and scores of beams
and of greedy search, under random settings. `logits.npz`: random logits, and what the processors of
`transformers` make of them. Tests read both without `transformers`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    LogitsProcessorList,
)
from transformers.generation import logits_process as processors

FOLDER = Path(__file__).parent / "fixtures"
CHECKPOINTS = Path(__file__).parents[1] / "models/pretrained/fixtures"
MODELS = {
    "gpt2": AutoModelForCausalLM, "llama": AutoModelForCausalLM, "t5": AutoModelForSeq2SeqLM,
    "marian": AutoModelForSeq2SeqLM,
}  # fmt: skip
VOCABULARY, CASES = 20, 1000


def settings_of(rng: np.random.Generator) -> dict[str, Any]:
    """Settings of a search with or without beams."""
    beams = int(rng.integers(1, 5))
    more: dict[str, Any] = {}
    if beams > 1:
        more = {
            "length_penalty": float(rng.choice([0.0, 0.6, 1.0, 2.0])),
            "early_stopping": [True, False, "never"][rng.integers(3)],
            "num_return_sequences": int(rng.integers(1, beams + 1)),
        }
    return {
        "max_new_tokens": int(rng.integers(2, 12)), "num_beams": beams, **more,
        "no_repeat_ngram_size": int(rng.integers(0, 4)), "min_new_tokens": int(rng.integers(0, 4)),
        "repetition_penalty": float(rng.choice([1.0, 1.4])),
        "bad_words_ids": [[int(rng.integers(8, 40))], rng.integers(8, 40, 2).tolist()],
        "eos_token_id": [[2], [2, 7]][rng.integers(2)],
    }  # fmt: skip


def searches() -> list[dict[str, Any]]:
    """Prompts, settings, and what comes of them."""
    rng, found = np.random.default_rng(0), []
    for name, model_type in MODELS.items():
        model = model_type.from_pretrained(CHECKPOINTS / name, dtype=torch.float32).eval()
        for _ in range(30):
            prompt = rng.integers(3, 40, int(rng.integers(1, 20))).tolist()
            settings = settings_of(rng)
            config = GenerationConfig(
                **settings, do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                output_scores=True,
                decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
            )  # fmt: skip
            ids = torch.tensor([prompt])
            with torch.no_grad():
                out = model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=config
                )
            before = 1 if model.config.is_encoder_decoder else len(prompt)
            results = []
            for tokens in out.sequences[:, before:].tolist():
                ends = [k for k, one in enumerate(tokens) if one in settings["eos_token_id"]]
                results.append(tokens[: ends[0] + 1] if ends else tokens)
            scores = out.sequences_scores.tolist() if settings["num_beams"] > 1 else None
            found.append(
                {"model": name, "prompt": prompt, "settings": settings, "results": results,
                 "scores": scores}
            )  # fmt: skip
    return found


def processed() -> dict[str, Any]:
    """Logits, settings, tokens so far, and the logits after all processors."""
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(CASES, VOCABULARY)) * rng.choice([0.3, 1, 5], (CASES, 1))).astype(
        np.float32
    )
    after, settings = np.empty_like(logits), []
    for row, out in zip(logits, after, strict=True):
        given = {
            "temperature": float(rng.choice([1.0, 0.5, 1.7])), "top_k": int(rng.choice([0, 1, 5])),
            "top_p": float(rng.choice([1.0, 0.9, 0.5, 0.1])),
            "min_p": float(rng.choice([0.0, 0.05, 0.3])),
            "repetition_penalty": float(rng.choice([1.0, 1.2, 0.8])),
            "no_repeat_ngram_size": int(rng.integers(0, 3)),
            "min_new_tokens": int(rng.integers(0, 6)), "suppress_tokens": [int(rng.integers(1, 9))],
        }  # fmt: skip
        context, result = [rng.integers(1, VOCABULARY, rng.integers(n, 6)).tolist() for n in (1, 0)]
        ids, scores = torch.tensor([[*context, *result]]), torch.tensor(row)[None]
        out[:] = _processors(given, len(context))(ids, scores)[0].numpy()
        settings.append({"settings": given, "context": context, "result": result})
    return {"logits": logits, "after": after, "settings": json.dumps(settings)}


def _processors(given: dict[str, Any], context: int) -> LogitsProcessorList:
    """In the order of `transformers`."""
    end = torch.tensor([0])
    found = [
        (given["repetition_penalty"] != 1, lambda: processors.RepetitionPenaltyLogitsProcessor(
            given["repetition_penalty"])),
        (given["no_repeat_ngram_size"], lambda: processors.NoRepeatNGramLogitsProcessor(
            given["no_repeat_ngram_size"])),
        (given["min_new_tokens"], lambda: processors.MinNewTokensLengthLogitsProcessor(
            context, given["min_new_tokens"], end)),
        (True, lambda: processors.SuppressTokensLogitsProcessor(given["suppress_tokens"])),
        (given["temperature"] != 1, lambda: processors.TemperatureLogitsWarper(
            given["temperature"])),
        (given["top_k"], lambda: processors.TopKLogitsWarper(given["top_k"])),
        (given["top_p"] < 1, lambda: processors.TopPLogitsWarper(given["top_p"])),
        (given["min_p"], lambda: processors.MinPLogitsWarper(given["min_p"])),
    ]  # fmt: skip
    return LogitsProcessorList([make() for wanted, make in found if wanted])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    lines = [json.dumps(one) for one in searches()]
    (FOLDER / "beams.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    np.savez_compressed(FOLDER / "logits.npz", **processed())
