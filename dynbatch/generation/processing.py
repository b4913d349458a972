"""`LogitsProcessing`: what a request's tokens so far, and its settings, make of a row of logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from dynbatch.arguments import refused
from dynbatch.backend import Array, DType
from dynbatch.generation.config import GenerationConfig
from dynbatch.kernels.choosing.edits import ListedIds, RowEdits

Hook = Callable[[Array, Array], Array]
"""Takes logits (V,) and the ids of prompt and result (T,); returns logits (V,). On a GPU the logits
are an array of CuPy, and so is what it returns."""

ALL, KEPT, FORCED = 0, 1, 2


class RowEdit(NamedTuple):
    """Changes of one row of logits: a row of `RowEdits`.

    penalized: ids, each with its factor and its amount.
    """

    penalized: Sequence[int] = ()
    factor: float = 1.0
    amounts: Sequence[float] = ()
    banned: Sequence[int] = ()
    allowed: Sequence[int] = ()
    limit: int = ALL


def joined(rows: Sequence[int], edits: Sequence[RowEdit], dtype: DType) -> RowEdits:
    """The edits of some rows of logits as tables."""

    def listed(ids: Sequence[Sequence[int]]) -> ListedIds:
        flat = [one for some in ids for one in some]
        ends = list(accumulate([len(some) for some in ids], initial=0))
        return ListedIds(np.array(flat, np.int64), np.array(ends, np.int64))

    factors = [edit.factor for edit in edits for _ in edit.penalized]
    amounts = [amount for edit in edits for amount in edit.amounts]
    return RowEdits(
        np.array(rows, np.int64), listed([edit.penalized for edit in edits]),
        np.array(factors, dtype), np.array(amounts, dtype),
        listed([edit.banned for edit in edits]), listed([edit.allowed for edit in edits]),
        np.array([edit.limit for edit in edits], np.int32),
    )  # fmt: skip


class LogitsProcessing:
    """The penalties and bans of one result, kept up to date token by token.

    Args:
        config:  the settings.
        context: ids that stand before the result: the prompt, or a target's first token.
        vocab:   V, the number of logits.
        limit:   most tokens of the result.
        prefix:  ids with which the result must begin.
        hook:    called with each row of logits, behind all penalties and bans.

    Attributes:
        hook: the same.

    Raises:
        ArgumentError: an id of the settings or the prefix is not below V, or no token is allowed.
    """

    def __init__(
        self, config: GenerationConfig, context: Sequence[int], vocab: int, limit: int,
        prefix: Sequence[int] = (), hook: Hook | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._limit = limit
        self._prefix = tuple(prefix)
        self.hook = hook
        self._context = len(context)
        self._least = config.least(len(context))
        _require_ids(config, prefix, vocab)
        self._begin(context)
        words = [word[0] for word in config.bad_words_ids if len(word) == 1]
        self._banned = (*config.suppress_tokens, *[one for one in words if one not in config.ends])
        self._allowed = sorted({*(config.allowed_tokens or ())})
        if config.allowed_tokens is not None and not {*self._allowed} - {*self._banned}:
            raise refused(
                "generate", "every allowed token is suppressed, or there is none",
                "allowed_tokens has one that neither suppress_tokens nor bad_words_ids bans",
                "allow the end mark, at least",
            )  # fmt: skip
        self._plain = self._plain_counts()

    def _plain_counts(self) -> range:
        """The lengths of the result after which the next row of logits stays as it is."""
        config = self._config
        is_first = config.begin_suppress_tokens or config.forced_bos_token_id is not None
        first = max(len(self._prefix), bool(is_first), self._least if config.ends else 0)
        is_always_changed = (
            self.hook is not None or self._banned or config.allowed_tokens is not None
            or config.repetition_penalty != 1 or config.no_repeat_ngram_size
            or config.presence_penalty or config.frequency_penalty
            or any([len(word) > 1 for word in config.bad_words_ids])
        )  # fmt: skip
        end = self._limit - 1 if config.forced_eos_token_id else self._limit
        return range(0) if is_always_changed else range(first, end)

    def _begin(self, context: Sequence[int]) -> None:
        config = self._config
        self._tokens = list(context)
        self._seen = set(context) if config.repetition_penalty != 1 else set()
        self._counts: dict[int, int] = {}
        self._followers: dict[tuple[int, ...], list[int]] = {}
        size = config.no_repeat_ngram_size
        if size:
            for end in range(size, len(self._tokens) + 1):
                self._note_ngram(end)

    def with_result(self, tokens: Sequence[int]) -> LogitsProcessing:
        copy = object.__new__(LogitsProcessing)
        copy.__dict__.update(self.__dict__)
        copy._begin(self._tokens[: self._context])
        for token in tokens:
            copy.take(token)
        return copy

    def fork(self) -> LogitsProcessing:
        copy = object.__new__(LogitsProcessing)
        copy.__dict__.update(self.__dict__)
        copy._tokens = list(self._tokens)
        copy._seen, copy._counts = set(self._seen), dict(self._counts)
        copy._followers = {key: list(followers) for key, followers in self._followers.items()}
        return copy

    @property
    def count(self) -> int:
        return len(self._tokens) - self._context

    @property
    def result(self) -> list[int]:
        return self._tokens[self._context :]

    @property
    def is_plain(self) -> bool:
        return len(self._tokens) - self._context in self._plain

    def take(self, token: int) -> None:
        self._tokens.append(token)
        if self._plain:
            return
        config = self._config
        if config.repetition_penalty != 1:
            self._seen.add(token)
        if config.presence_penalty or config.frequency_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
        if config.no_repeat_ngram_size:
            self._note_ngram(len(self._tokens))

    def edit(self) -> RowEdit:
        """The changes of the next row of logits, without the hook's."""
        config, count = self._config, self.count
        if count < len(self._prefix):
            return RowEdit(allowed=self._prefix[count : count + 1], limit=FORCED)
        if config.forced_eos_token_id and count == self._limit - 1:
            return RowEdit(allowed=sorted({*config.forced_eos_token_id}), limit=FORCED)
        if count == 0 and config.forced_bos_token_id is not None:
            return RowEdit(allowed=(config.forced_bos_token_id,), limit=FORCED)
        banned = {*self._banned, *self._ends_of_sequences()}
        if count < self._least:
            banned.update(config.ends)
        if count == 0:
            banned.update(config.begin_suppress_tokens)
        penalized = self._seen or self._counts
        one, each, counts = config.presence_penalty, config.frequency_penalty, self._counts
        amounts = [one + each * counts[token] if token in counts else 0.0 for token in penalized]
        is_limited = config.allowed_tokens is not None
        return RowEdit(
            tuple(penalized), config.repetition_penalty, amounts, tuple(banned), self._allowed,
            KEPT if is_limited else ALL,
        )  # fmt: skip

    def hooked(self, row: Array) -> Array:
        """The hook's result for a row of logits (V,), which may be written over.

        Raises:
            ArgumentError: it returned something else than logits (V,).
        """
        if self.hook is None or self.count < len(self._prefix):
            return row
        result: Any = self.hook(row, np.array(self._tokens, np.int64))
        if isinstance(row, np.ndarray):
            result = np.asarray(result)
        if type(result) is not type(row) or result.shape != row.shape or result.dtype.kind != "f":
            dtype, shape = getattr(result, "dtype", type(result)), getattr(result, "shape", "")
            raise refused(
                "generate", f"the hook returned {dtype} {shape}",
                f"process(logits, tokens) returns logits {row.shape}",
                "return the array it was given, changed",
            )  # fmt: skip
        return result

    def _ends_of_sequences(self) -> list[int]:
        """Tokens with which a sequence that may not come would end here."""
        size, tokens = self._config.no_repeat_ngram_size, self._tokens
        ends: list[int] = []
        if size and len(tokens) >= size - 1:
            start = tuple(tokens[len(tokens) - size + 1 :])
            ends += self._followers.get(start, [])
        for word in self._config.bad_words_ids:
            before = len(word) - 1
            if before and tuple(tokens[-before:]) == word[:-1]:
                ends.append(word[-1])
        return ends

    def _note_ngram(self, end: int) -> None:
        first = end - self._config.no_repeat_ngram_size
        if first >= 0:
            *start, last = self._tokens[first:end]
            self._followers.setdefault(tuple(start), []).append(last)


def _require_ids(config: GenerationConfig, prefix: Sequence[int], vocab: int) -> None:
    ids_of = {
        "prefix": prefix, "allowed_tokens": config.allowed_tokens or (),
        "suppress_tokens": config.suppress_tokens, "eos_token_id": config.ends,
        "begin_suppress_tokens": config.begin_suppress_tokens,
        "bad_words_ids": [one for word in config.bad_words_ids for one in word],
        "forced_eos_token_id": config.forced_eos_token_id,
        "forced_bos_token_id": () if config.forced_bos_token_id is None
        else (config.forced_bos_token_id,),
    }  # fmt: skip
    for name, ids in ids_of.items():
        for one in ids:
            if not 0 <= one < vocab:
                raise refused(
                    "generate", f"{name} has id {one}", f"0 <= id < {vocab}, as many as logits",
                    "give ids of the model's own vocabulary",
                )  # fmt: skip
