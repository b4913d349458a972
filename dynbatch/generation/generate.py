"""`generate`: the results of many prompts at once."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynbatch.arguments import refused
from dynbatch.data_set import in_order
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.processing import Hook
from dynbatch.generation.requests import Generated
from dynbatch.generation.streaming import Detokenizer
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.models.evaluating import evaluating


def generate(
    model: Any, prompts: Sequence[ArrayLike | str], config: GenerationConfig | None = None, *,
    tokenizer: Detokenizer | None = None, process: Hook | None = None,
    step_tokens: int = 2048, memory_limit: int | str | None = None, positions: int | None = None,
    batch_invariant: bool = False, matmul: str | None = None, precision: str = FULL,
    seeds: Sequence[int] | None = None, **changes: Any,
) -> list[list[Generated]]:  # fmt: skip
    """Continue prompts, or write targets for sources, all side by side.

    Args:
        model:     as `Engine`.
        prompts:   a list: ids (T,) each; or texts, where there is a tokenizer with `encode`.
        config:    how tokens are chosen, and when a result ends; `changes` override single fields.
        tokenizer: makes text of ids.
        process:   a hook (logits (V,), ids so far (T,)) -> logits (V,).
        step_tokens, memory_limit, positions, batch_invariant, matmul, precision: as `Engine`.
        seeds:     from which prompts draw, one each, in place of seed + k; for a part of the
                   prompts, whose others are in another call or process.

    Returns:
        For each prompt its results, the best first; one at least, and of beams perhaps fewer than
        `num_return_sequences`, where settings leave no more. With a `seed` prompt k draws from
        seed + k, so that its results do not depend on the other prompts.

    Raises:
        ArgumentError:   `prompts` is one prompt and not a list of them, or has keys, a prompt is
                         empty or too long, or `seeds` does not have one seed for each prompt.
        VocabularyError: an id is not one of the model's.
        Exception:       what made the first request that failed fail; an `Engine` keeps the results
                         of the others.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch.models.pretrained import GPT2, GPT2Config
        >>> sizes = {"n_positions": 16, "n_embd": 4, "n_layer": 1, "n_head": 2}
        >>> model = GPT2(GPT2Config(vocab_size=10, **sizes))
        >>> results = generate(model, [[3, 1, 2], [7]], max_new_tokens=5)
        >>> [len(best.tokens) for (best,) in results]
        [5, 5]
    """
    config = (GenerationConfig() if config is None else config).changed(**changes)
    _refuse_one_prompt(prompts)
    prompts = list(in_order("generate", "prompts", prompts))
    if seeds is None and config.seed is not None:
        seeds = range(config.seed, config.seed + len(prompts))
    if seeds is not None and len(seeds) != len(prompts):
        raise refused(
            "generate", f"{len(seeds)} seeds for {len(prompts)} prompts", "a seed for each prompt",
            "seeds=range(len(prompts)), or seed=0",
        )  # fmt: skip
    engine = Engine(
        model, config, tokenizer=tokenizer, step_tokens=step_tokens, memory_limit=memory_limit,
        positions=positions, batch_invariant=batch_invariant, matmul=matmul,
        precision=precision,
    )  # fmt: skip
    with engine, evaluating(model):  # once, rather than in each step
        numbers = []
        for k, prompt in enumerate(prompts):
            seed_of: dict[str, Any] = {} if seeds is None else {"seed": seeds[k]}
            numbers.append(engine.add(_ids_of(prompt, tokenizer), process=process, **seed_of))
        for _ in engine.run():
            pass
        return [engine.results(number) for number in numbers]


def _refuse_one_prompt(prompts: Any) -> None:
    """Refuse a text or ids that are given as they are: a text would be a prompt a character."""
    kind = "a text" if isinstance(prompts, str) else ""
    if isinstance(prompts, np.ndarray) and prompts.ndim == 1 and prompts.dtype != object:
        kind = "an array of one dimension"
    elif isinstance(prompts, (list, tuple)) and prompts and isinstance(prompts[0], Integral):
        kind = "one sentence's ids"
    if kind:
        raise refused(
            "generate", f"prompts is {kind}", "prompts is a list, of one prompt or of many",
            "generate(model, [prompt])",
        )  # fmt: skip


def _ids_of(prompt: ArrayLike | str, tokenizer: Any) -> ArrayLike:
    if not isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        raise refused(
            "generate", f"the text {prompt[:20]!r} without a tokenizer", "a model reads ids",
            "give tokenizer=…, or the ids",
        )  # fmt: skip
    return np.asarray(tokenizer.encode(prompt), np.int64)
