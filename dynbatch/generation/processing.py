"""`LogitsProcessing`: what a request's tokens so far, and its settings, make of a row of logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dynbatch.arguments import refused
from dynbatch.generation.config import GenerationConfig
from dynbatch.parameter import Array

Hook = Callable[[Array, Array], Array]
"""Takes logits (V,) and the ids of prompt and result (T,); returns logits (V,)."""


class LogitsProcessing:
    """The penalties and bans of one result, kept up to date token by token.

    Args:
        config:  the settings.
        context: ids that stand before the result: the prompt, or a target's first token.
        vocab:   V, the number of logits.
        limit:   most tokens of the result.
        prefix:  ids with which the result must begin.
        hook:    called with each row of logits, behind all penalties and bans.

    Raises:
        ArgumentError: an id of the settings or the prefix is none of the V.
    """

    def __init__(
        self, config: GenerationConfig, context: Sequence[int], vocab: int, limit: int,
        prefix: Sequence[int] = (), hook: Hook | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._limit = limit
        self._prefix = tuple(prefix)
        self._hook = hook
        self._context = len(context)
        self._tokens = list(context)
        self._least = config.least(len(context))
        _require_ids(config, prefix, vocab)
        self._seen = set(context) if config.repetition_penalty != 1 else set()
        self._counts: dict[int, int] = {}
        self._followers: dict[tuple[int, ...], list[int]] = {}
        size = config.no_repeat_ngram_size
        if size:
            for end in range(size, len(self._tokens) + 1):
                self._note_ngram(end)
        self._never = _mask_of(config, vocab)

    def fork(self) -> LogitsProcessing:
        """A copy that goes on by itself."""
        copy = object.__new__(LogitsProcessing)
        copy.__dict__.update(self.__dict__)
        copy._tokens = list(self._tokens)
        copy._seen, copy._counts = set(self._seen), dict(self._counts)
        copy._followers = {key: list(found) for key, found in self._followers.items()}
        return copy

    @property
    def count(self) -> int:
        """Tokens of the result so far."""
        return len(self._tokens) - self._context

    @property
    def result(self) -> list[int]:
        """The result so far."""
        return self._tokens[self._context :]

    @property
    def is_trivial(self) -> bool:
        """Whether the next row of logits stays as it is."""
        config, count = self._config, self.count
        return (
            self._never is None and self._hook is None and count >= len(self._prefix)
            and not (self._seen or self._counts or config.no_repeat_ngram_size)
            and not (count == 0 and (config.begin_suppress_tokens or _forced_first(config)))
            and not any([len(word) > 1 for word in config.bad_words_ids])
            and not (config.forced_eos_token_id and count == self._limit - 1)
            and (count >= self._least or not config.eos_token_id)
        )  # fmt: skip

    def take(self, token: int) -> None:
        """Append a token to the result."""
        config = self._config
        self._tokens.append(token)
        if config.repetition_penalty != 1:
            self._seen.add(token)
        if config.presence_penalty or config.frequency_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
        if config.no_repeat_ngram_size:
            self._note_ngram(len(self._tokens))

    def apply(self, row: Array) -> Array:
        """The row of logits (V,) after all that the settings ask for; it may be written over.

        Raises:
            ArgumentError: the hook returned something else than logits (V,).
        """
        config, count = self._config, self.count
        if count < len(self._prefix):
            return _only(row, self._prefix[count : count + 1])
        self._penalize(row)
        self._ban_sequences(row)
        if self._never is not None:
            row[self._never] = -np.inf
        if count < self._least:
            row[list(config.eos_token_id)] = -np.inf
        if count == 0:
            row[list(config.begin_suppress_tokens)] = -np.inf
            if config.forced_bos_token_id is not None:
                row = _only(row, (config.forced_bos_token_id,))
        if config.forced_eos_token_id and count == self._limit - 1:
            row = _only(row, config.forced_eos_token_id)
        return row if self._hook is None else self._hooked(row)

    def _penalize(self, row: Array) -> None:
        config = self._config
        if self._seen:
            ids = np.fromiter(self._seen, np.int64, len(self._seen))
            values, penalty = row[ids], row.dtype.type(config.repetition_penalty)
            row[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            ids = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), row.dtype, len(self._counts))
            row[ids] -= config.presence_penalty + config.frequency_penalty * counts

    def _ban_sequences(self, row: Array) -> None:
        size, tokens = self._config.no_repeat_ngram_size, self._tokens
        if size and len(tokens) >= size - 1:
            start = tuple(tokens[len(tokens) - size + 1 :])
            row[self._followers.get(start, [])] = -np.inf
        for word in self._config.bad_words_ids:
            before = len(word) - 1
            if before and tuple(tokens[-before:]) == word[:-1]:
                row[word[-1]] = -np.inf

    def _note_ngram(self, end: int) -> None:
        """Note which token came last in the n tokens that end there."""
        first = end - self._config.no_repeat_ngram_size
        if first >= 0:
            *start, last = self._tokens[first:end]
            self._followers.setdefault(tuple(start), []).append(last)

    def _hooked(self, row: Array) -> Array:
        assert self._hook is not None
        result = np.asarray(self._hook(row, np.array(self._tokens, np.int64)))
        if result.shape != row.shape or result.dtype.kind != "f":
            raise refused(
                "generate", f"the hook returned {result.dtype} {result.shape}",
                f"process(logits, tokens) returns logits {row.shape}",
                "return the array it was given, changed",
            )  # fmt: skip
        return result


def _forced_first(config: GenerationConfig) -> bool:
    return config.forced_bos_token_id is not None


def _only(row: Array, ids: Sequence[int]) -> Array:
    """Logits that allow these ids alone, all alike."""
    row[...] = -np.inf
    row[list(ids)] = 0
    return row


def _mask_of(config: GenerationConfig, vocab: int) -> Array | None:
    """(V,) which tokens never come; None where all may."""
    banned = [*config.suppress_tokens, *[w[0] for w in config.bad_words_ids if len(w) == 1]]
    if not banned and config.allowed_tokens is None:
        return None
    mask = np.full(vocab, config.allowed_tokens is not None)
    mask[list(config.allowed_tokens or ())] = False
    mask[banned] = True
    return mask


def _require_ids(config: GenerationConfig, prefix: Sequence[int], vocab: int) -> None:
    given = {
        "prefix": prefix, "allowed_tokens": config.allowed_tokens or (),
        "suppress_tokens": config.suppress_tokens, "eos_token_id": config.eos_token_id,
        "begin_suppress_tokens": config.begin_suppress_tokens,
        "bad_words_ids": [one for word in config.bad_words_ids for one in word],
        "forced_eos_token_id": config.forced_eos_token_id,
        "forced_bos_token_id": () if config.forced_bos_token_id is None
        else (config.forced_bos_token_id,),
    }  # fmt: skip
    for name, ids in given.items():
        for one in ids:
            if not 0 <= one < vocab:
                raise refused(
                    "generate", f"{name} has id {one}", f"0 <= id < {vocab}, as many as logits",
                    "give ids of the model's own vocabulary",
                )  # fmt: skip
