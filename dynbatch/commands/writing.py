"""`Writing`: prompts on their way through an engine, and what is printed of their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from dynbatch.backend import Array
from dynbatch.commands.status import said
from dynbatch.errors import DynbatchError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.engine import Engine
from dynbatch.generation.reasons import NO_TOKEN
from dynbatch.generation.requests import Generated
from dynbatch.tasks.task import TextCoder
from dynbatch.train.metrics import finite

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})

Outcome = list[Generated] | Exception
"""The results of a prompt, or why there are none."""


class Writing:
    """Gives prompts to an engine, a bounded number at a time, and returns text in their order.

    Args:
        engine:    with the tokenizer of the results.
        tokenizer: of the prompts.
        config:    how tokens are chosen; prompt k draws from its seed plus k.
        prompts:   each is asked for when there is room for it in the engine.

    Attributes:
        ended, refused: prompts so far.
        tokens:         of all results so far.
    """

    def __init__(
        self, engine: Engine, tokenizer: TextCoder, config: GenerationConfig, prompts: Iterable[str]
    ) -> None:
        self._engine, self._tokenizer, self._config = engine, tokenizer, config
        self._prompts = prompts
        self.ended = self.refused = self.tokens = 0

    def pieces(
        self, most: int, is_alone: bool, is_json: bool, has_scores: bool = False
    ) -> Iterator[str]:
        """Text to print: of one result alone each piece as it comes, else lines for each prompt.

        Args:
            most:       prompts in the engine at once.
            has_scores: put a result's log-probability before its text.
        """
        prompts = enumerate(self._prompts)
        texts: dict[int, str] = {}
        outcomes: dict[int, Outcome] = {}
        printed = 0
        numbers: dict[int, int] = {}
        while True:
            begun = list(islice(prompts, most - len(numbers)))
            if not begun and not numbers:
                return
            for prompt, text in begun:
                texts[prompt] = text
                number = self._begin(prompt, text, outcomes)
                if number is not None:
                    numbers[number] = prompt
            for event in self._engine.step():
                if is_alone and event.text:
                    yield event.text
            for number in [number for number in numbers if self._engine.has_ended(number)]:
                self._end(number, numbers.pop(number), outcomes)
            # Results end in any order, but are printed in the order of their prompts.
            while printed in outcomes:
                outcome, text = outcomes.pop(printed), texts.pop(printed)
                if not is_alone:
                    yield self._lines(text, outcome, is_json, has_scores)
                elif not self.refused:
                    yield "\n"
                printed += 1

    def _begin(self, prompt: int, text: str, outcomes: dict[int, Outcome]) -> int | None:
        """Give a prompt to the engine; None where it is refused."""
        config = self._config
        assert config.seed is not None
        try:
            ids = self._ids(text)
            return self._engine.add(ids, seed=config.seed + prompt)
        except DynbatchError as error:
            self._refuse(prompt, error, outcomes)
            return None

    def _ids(self, prompt: str) -> Array:
        """The prompt's ids; of an empty one the id that begins texts, if there is one."""
        ids = self._tokenizer.encode(prompt)
        begin = self._config.bos_token_id
        return ids if ids.size or begin is None else np.array([begin], np.int64)

    def _end(self, number: int, prompt: int, outcomes: dict[int, Outcome]) -> None:
        try:
            results = self._engine.results(number)
        except Exception as error:  # whatever made the request fail
            self._refuse(prompt, error, outcomes)
            return
        self.ended += 1
        self.tokens += sum([len(one.tokens) for one in results])
        outcomes[prompt] = results
        if stopped := [len(one.tokens) for one in results if one.reason == NO_TOKEN]:
            print(
                f"warning: prompt {prompt + 1}: after {min(stopped):,} tokens none is left that may"
                " follow, so the result ends there",
                file=sys.stderr,
            )

    def _refuse(self, prompt: int, error: Exception, outcomes: dict[int, Outcome]) -> None:
        print(f"error: prompt {prompt + 1}: {said(error)}", file=sys.stderr)
        self.ended += 1
        self.refused += 1
        outcomes[prompt] = error

    def _lines(self, prompt: str, outcome: Outcome, is_json: bool, has_scores: bool) -> str:
        results = [] if isinstance(outcome, Exception) else outcome
        if not is_json:
            lines = [one.text.translate(_ESCAPES) for one in results]
            if has_scores:
                lines = [
                    f"{one.log_prob:.4f}\t{line}" for one, line in zip(results, lines, strict=True)
                ]
            missing = self._config.num_return_sequences - len(lines)
            return "\n".join([*lines, *[""] * missing, ""])
        objects = [{**asdict(one), "log_prob": one.log_prob} for one in results]
        content: dict[str, Any] = {"prompt": prompt, "results": objects}
        if isinstance(outcome, Exception):
            content["error"] = said(outcome)
        return json.dumps(finite(content), ensure_ascii=False) + "\n"

    def summary(self, seconds: float) -> str:
        """The last line: how much was written how fast, and the most that caches took.

        Args:
            seconds: since the beginning.
        """
        count = self.ended
        refused = f", {self.refused:,} refused" if self.refused else ""
        return (
            f"{count:,} prompt{'s' * (count != 1)}{refused}, {self.tokens:,} tokens in "
            f"{seconds:.2f} s, {self.tokens / max(seconds, 1e-9):,.0f} tokens/s, caches "
            f"{self._engine.caches.peak_bytes / 1e6:,.2f} MB at most"
        )
