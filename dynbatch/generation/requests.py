"""`GenerationRequest`: one prompt on its way to its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.generation.beams import Beams
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.history import History
from dynbatch.generation.processing import LogitsProcessing
from dynbatch.generation.reasons import FAILED
from dynbatch.generation.sampling import cut_of
from dynbatch.generation.streaming import Detokenizer, TextStream


class TokenEvent(NamedTuple):
    """One token, or the end of a result.

    request, result: numbers: of `Engine.add`, and among the request's results from 0 on.
    token:    its id; None where none has come.
    log_prob: of the token, in nats, by the model itself: before penalties, bans and temperature.
    text:     what is certain now of the result's text and was not before.
    reason:   why the result ends here: "end", "length", "stop string", "no token" (none of those
              that may come is left) or "failed"; "" while it goes on.
    error:    of a request that failed.
    """

    request: int
    result: int
    token: int | None
    log_prob: float = 0.0
    text: str = ""
    reason: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """One result.

    Args:
        tokens:    ids, the end mark among them where it ended so.
        log_probs: of each token in nats, by the model itself.
        score:     Σ log_probs, in the model's dtype; of beams, what they are ranked by: after
                   penalties, and divided by length^length_penalty.
        reason:    why it ended: "end", "length", "stop string", or "no token" where none of those
                   that may come was left.
        text:      of the tokens, where there is a tokenizer.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    reason: str
    text: str = ""

    @property
    def log_prob(self) -> float:
        """Σ log_probs in nats: log p(tokens | prompt), whatever it was ranked by."""
        return fsum(self.log_probs)


class Candidates(NamedTuple):
    """Next tokens of a sentence (K,), as `Beams.extend` takes them."""

    tokens: Array
    scores: Array
    log_probs: Array


@dataclass(slots=True)
class Branch:
    """One sentence of a request that is being written.

    Args:
        number:     among the request's results.
        history:    what the model has left of its tokens so far.
        waiting:    ids that the model has not read.
        processing: of its logits.
        stream:     of its text; None without a tokenizer.
        random:     number of its random stream.
        log_probs:  of its tokens, in nats.
        text:       that is certain.
        candidates: of a beam, what extends it best, once the model has read all that waited.
    """

    number: int
    history: History
    waiting: Array
    processing: LogitsProcessing
    stream: TextStream | None
    random: int = 0
    log_probs: list[float] = field(default_factory=list)
    text: str = ""
    candidates: Candidates | None = None


class GenerationRequest:
    """A prompt, its settings, and its sentences.

    Attributes:
        source:   what an encoder reads; None for a decoder alone.
        context:  ids that stand before the results: the prompt, or a decoder's first id.
        branches: sentences that go on.
        cut:      what is cut off before a token is drawn: see `cut_of`.
        beams:    of a beam search.
        results:  that have ended.
        is_apart: whether a step failed that may have failed because of it: see `RequestQueue`.
        error:    why it failed.
    """

    def __init__(
        self, number: int, source: Array | None, context: Array, config: GenerationConfig,
        limit: int, branch: Branch, tokenizer: Detokenizer | None,
    ) -> None:  # fmt: skip
        self.number = number
        self.source = source
        self.context = context
        self.config = config
        self.limit = limit
        self.tokenizer = tokenizer
        self.branches = [branch]
        branch.stream = self.new_stream()
        self.cut = cut_of(config)
        has_hook = branch.processing.hook is not None
        self.beams = Beams(config, limit, has_hook=has_hook) if config.num_beams > 1 else None
        self.results: dict[int, Generated] = {}
        self.is_begun = self.is_apart = False
        self.error: Exception | None = None

    def new_stream(self) -> TextStream | None:
        """The text of a sentence without tokens; None where there is no tokenizer."""
        if self.tokenizer is None:
            return None
        return TextStream(self.tokenizer, self.config.stop_strings)

    def fail(self, error: Exception) -> TokenEvent:
        self.error = error
        self.close()
        return TokenEvent(self.number, 0, None, reason=FAILED, error=error)

    def close(self) -> None:
        for branch in self.branches:
            branch.history.close()
        self.branches = []

    def restart(self) -> None:
        """Give back all pages; each sentence is read again from its first token on.

        Where an interrupt came, what is known of a sentence is its tokens, those of beams in
        `beams`; a result is known when it is among the results.
        """
        has_ended = self.error is not None or (self.beams is not None and self.results)
        if has_ended or not self.branches:
            self.close()
            return
        for branch in self.branches:
            branch.history.close()
        known = [(branch, branch.number, branch.processing.result) for branch in self.branches]
        if self.beams is not None:
            known = [
                (self.branches[0], number, list(tokens))
                for number, tokens in enumerate(self.beams.tokens or [()])
            ]
        self.branches = [self._begun_again(*one) for one in known if one[1] not in self.results]

    def _begun_again(self, branch: Branch, number: int, tokens: Sequence[int]) -> Branch:
        """A sentence of which nothing has been read, with these tokens of a result."""
        text, stream = "", self.new_stream()
        if stream is not None:
            text = "".join([stream.put(token) for token in tokens])
        waiting = np.array([*self.context.tolist(), *tokens], np.int64)
        processing = branch.processing.with_result(tokens)
        log_probs = branch.log_probs[: len(tokens)]
        history = History(branch.history.caches)
        return Branch(number, history, waiting, processing, stream, branch.random, log_probs, text)

    def generated(self) -> list[Generated]:
        """The results in order, the best first where they are beams."""
        return [self.results[k] for k in sorted(self.results)]
