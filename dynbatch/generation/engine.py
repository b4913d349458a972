"""`Engine`: generates for any number of prompts side by side; they join and leave at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dynbatch import random
from dynbatch.arguments import refused, size, switch
from dynbatch.backend import Array
from dynbatch.errors import VocabularyError
from dynbatch.generation.choosing import choose
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.growing import Ready
from dynbatch.generation.history import History, memory_of
from dynbatch.generation.invariance import invariant_products
from dynbatch.generation.model import Continuation
from dynbatch.generation.pages import CacheMemory
from dynbatch.generation.processing import Hook, LogitsProcessing
from dynbatch.generation.recording import Recording
from dynbatch.generation.request_queue import RequestQueue, Rows
from dynbatch.generation.requests import Branch, Generated, GenerationRequest, TokenEvent
from dynbatch.generation.streaming import Detokenizer
from dynbatch.kernels.choosing.results import start_kernels
from dynbatch.kernels.runtime.precision import FULL
from dynbatch.kernels.runtime.stream import Replays, stream_of
from dynbatch.memory.sizes import parse_bytes
from dynbatch.models.evaluating import evaluating
from dynbatch.nodes.arguments import are_below, as_ids

Result = TypeVar("Result")


class Engine:
    """Continues many prompts at once, by one token for each sentence in a step.

    Each step is one graph over the new rows of all sentences: of a new prompt all its tokens, of
    the others their last one. What a sentence's rows have left for those to come (keys and values)
    lies in pages, which go back in the step in which the sentence ends; leave an engine that has
    not come to an end by `with` or `close`.

    Args:
        model:      has `logits(graph, ids)` -> (T, V), whose row t scores the token that follows
                    ids[: t + 1]; or is itself called with these arguments. An encoder-decoder has
                    `encode(graph, source)`, a node or several; `decode(graph, ids, *encoded)`,
                    (T, D); `predict(hidden)`, the logits; `start`, its decoder's first id; and
                    `end`, where it has one, the id that ends a sentence.
                    It runs where its parameters are, in evaluation mode, and is left as it was.
        config:     the settings of requests that bring none.
        tokenizer:  makes text of ids, for events, results and stop strings.
        step_tokens: most tokens that the model reads in a step; longer prompts take several. As
                    many tokens of sources are encoded in a step at most, or one source.
        memory_limit: most bytes of pages at once; requests wait for others to end. None: no limit
                    but the pool's.
        positions:  most tokens of prompt and result together; None for as many as the model's
                    `positions`, or for any number where it has none.
        batch_invariant: whether tokens and scores of a sentence are the same to the bit alone and
                    in company even where C kernels do not run. Where they run, they always are, at
                    no cost. Without them products are made in small tiles: what this costs is
                    measured and printed in a line.
        matmul:     what factors of products with weights are rounded to: "float32", "tf32" or
                    "bfloat16", as in `Graph`, which raises what it refuses. On a CPU a step that
                    comes again reads weights packed in bfloat16, until there is nothing to do. An
                    optimizer, `assign` and checkpoints may change weights meanwhile; what a program
                    writes into `parameter.value` itself is read when requests have ended. By
                    default as `precision`.
        precision:  "float32", or "bfloat16", to which what pages keep (keys and values, memories
                    of scans; not the states of scans) is rounded when it is written: they take half
                    the memory, and half the time to be read. Logits, and other values that no later
                    step reads, stay float32.
        record:     keep what each step does, for `pictures.generation`: some numbers a request and
                    step.

    Raises:
        ArgumentError: `batch_invariant` cannot hold: on a GPU, or with
            `set_batch_invariant(False)`; `precision` is unknown, or parameters are not float32.
        BackendError:  `batch_invariant` does not hold in a test of this model on this machine,
            without C kernels.
    """

    def __init__(
        self, model: Any, config: GenerationConfig | None = None, *,
        tokenizer: Detokenizer | None = None, step_tokens: int = 2048,
        memory_limit: int | str | None = None, positions: int | None = None,
        batch_invariant: bool = False, matmul: str | None = None, precision: str = FULL,
        record: bool = False,
    ) -> None:  # fmt: skip
        self._model = model
        self._config = GenerationConfig() if config is None else config
        self._tokenizer = tokenizer
        self._step_tokens = size(self, "step_tokens", step_tokens)
        of_model = getattr(model, "positions", None)  # which may be a table of its own
        self._positions = of_model if positions is None and isinstance(of_model, int) else positions
        self._continuation = Continuation(model, matmul, precision)
        with evaluating(model), self._continuation.graph() as graph:
            program = self._continuation.program(graph)
        self._vocab = program.width
        self.caches = self._continuation.new_caches()
        self._limit = None if memory_limit is None else parse_bytes("memory_limit", memory_limit)
        self._queue = RequestQueue(self.caches, self._step_tokens, self._limit)
        self._requests: dict[int, GenerationRequest] = {}
        self._is_whole = True  # not within a step, or after one that was broken off
        self._count = 0
        self.recording = Recording(self._limit) if switch(self, "record", record) else None
        self._products: Callable[[], AbstractContextManager[None]] = nullcontext
        if switch(self, "batch_invariant", batch_invariant):
            probe = partial(
                Engine, model, positions=positions, matmul=matmul, precision=precision
            )  # fmt: skip
            device = self._continuation.device
            self._products = invariant_products(probe, self._vocab, self._positions, device)

    # Requests -------------------------------------------------------------------------------------

    def add(
        self, prompt: ArrayLike, config: GenerationConfig | None = None, *,
        prefix: Sequence[int] = (), process: Hook | None = None, **changes: Any,
    ) -> int:  # fmt: skip
        """Take a request; it joins at the next step with room for it. Return its number.

        Args:
            prompt:  ids (T,), T >= 1: what is continued; or the source of an encoder-decoder,
                     which may be empty.
            config:  its settings; `changes` override single ones.
            prefix:  ids with which results begin.
            process: a hook (logits (V,), ids so far (T,)) -> logits (V,).

        Raises:
            ArgumentError:   the prompt is empty, or it leaves no room for a token.
            VocabularyError: an id is not one of the model's.
        """
        config = self._config if config is None else config
        config = config.changed(**changes) if changes else config
        if config.eos_token_id is None:
            config = replace(config, eos_token_id=self._continuation.ends)
        ids = as_ids("Engine.add", prompt)
        self._require_prompt(ids, config)
        source, context = (
            (ids, self._first(config)) if self._continuation.has_source else (None, ids)
        )
        limit = config.limit(context.size, self._positions)
        processing = LogitsProcessing(config, context.tolist(), self._vocab, limit, prefix, process)
        is_drawn = config.do_sample and config.seed is None
        seed = random.next_seed() if is_drawn else config.seed or 0
        branch = Branch(0, History(self.caches), context, processing, None, random=seed)
        request = GenerationRequest(
            self._count, source, context, config, limit, branch, self._tokenizer
        )
        most = self._queue.bytes_at_most(request)
        if self._limit is not None and most > self._limit:
            raise refused(
                "Engine.add", f"a prompt of {ids.size} tokens and {limit} more need {most:,} bytes",
                f"pages stay within the limit: memory_limit is {self._limit:,} bytes",
                "raise it, or lower max_new_tokens",
            )  # fmt: skip
        self._count += 1
        self._requests[request.number] = request
        self._queue.waiting.append(request)
        return request.number

    def _first(self, config: GenerationConfig) -> Array:
        start = config.decoder_start_token_id
        return np.array([self._model.start if start is None else start], np.int64)

    def _require_prompt(self, ids: Array, config: GenerationConfig) -> None:
        if not ids.size and not self._continuation.has_source:
            raise refused(
                "Engine.add", "the prompt is empty", "a prompt has one token or more",
                "begin with the model's first token",
            )  # fmt: skip
        if not self._continuation.has_source and not are_below(ids, self._vocab):
            wrong = ids[(ids < 0) | (ids >= self._vocab)][0]
            raise VocabularyError.at_caller(
                f"Engine.add: id {wrong} of {self._vocab}.\n  rule: 0 <= id < {self._vocab}\n"
                "  fix:  encode the prompt with the model's own tokenizer"
            )
        context = 1 if self._continuation.has_source else ids.size
        if config.limit(context, self._positions) < 1:
            bounds = [most for most in (self._positions, config.max_length) if most is not None]
            raise refused(
                "Engine.add", f"a prompt of {ids.size} tokens leaves no room for another token",
                f"prompt and result have at most {min(bounds)} tokens",
                "shorten the prompt, or raise max_length",
            )  # fmt: skip
        if config.stop_strings and self._tokenizer is None:
            raise refused(
                "Engine.add", "stop strings without a tokenizer", "they are looked for in text",
                "give the engine a tokenizer, or eos_token_id",
            )  # fmt: skip

    def cancel(self, request: int) -> None:
        """End a request, which is forgotten then; nothing happens where it is not known."""
        known = self._requests.get(request)
        if known is not None:
            self._queue.forget(known)
            self._give_back()
            self._requests.pop(request, None)  # last: until then it can be repeated

    def close(self) -> None:
        """Cancel all requests, so that nothing is on loan from the pool; `with Engine(…)` does."""
        for number in list(self._requests):
            self.cancel(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def has_ended(self, request: int) -> bool:
        """Whether a request has results to be read, or has failed. An event with a reason told it,
        the last of its results; there may be fewer than `num_return_sequences` of beams."""
        known = self._requests.get(request)
        return known is not None and not known.branches

    def results(self, request: int) -> list[Generated]:
        """The results of a request that has ended, which is forgotten then.

        Raises:
            ArgumentError: it has not ended; or its results were read before, or it was cancelled.
            Exception:     what made it fail.
        """
        known = self._requests.get(request)
        if known is None or not self.has_ended(request):
            raise refused(
                "Engine.results", f"request {request} {'goes on' if known else 'is not known'}",
                "a request has results from its end on, until they are read",
                "take steps until has_ended(request), and keep the results",
            )  # fmt: skip
        results = known.generated()
        del self._requests[request]
        if known.error is not None:
            raise known.error
        return results

    def memory_use(self) -> CacheMemory:
        """Bytes of the caches, of their rows, of their pages, and the most of these so far; and of
        packed weights."""
        branches = [branch for request in self._queue.live for branch in request.branches]
        memory = memory_of(self.caches, [branch.history for branch in branches])
        packed = self._continuation.packed
        return memory if packed is None else memory._replace(weights=packed.nbytes)

    @property
    def replays(self) -> Replays | None:
        """Counts of steps of this thread's engines that were one CUDA graph, and why others
        were not; it prints as text. None on the CPU."""
        return stream_of(self._continuation.device).replays

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._queue.live or self._queue.waiting)

    def run(self) -> Iterator[TokenEvent]:
        """Take steps until all requests have ended; requests may be added meanwhile."""
        while not self.is_idle:
            yield from self.step()

    # Steps ----------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Read what waits, at most `step_tokens` tokens, and choose a token for each sentence.

        A request that fails ends with an event, and the others go on. After an interrupt all are
        read again, from what is known of their tokens.
        """
        self._mend()
        self._is_whole = False
        try:
            events = self._step()
            self._is_whole = True
        except BaseException:
            self._mend()  # or in the next step, if an interrupt comes here too
            raise
        return events

    def _mend(self) -> None:
        if not self._is_whole:
            self._continuation.forget_steps()
            self._queue.put_back(self._queue.live)
            self._is_whole = True

    def _step(self) -> list[TokenEvent]:
        queue, events = self._queue, list[TokenEvent]()
        self._continuation.device.use()
        with evaluating(self._model), self._products():
            joining = queue.join()
            if joining and self._continuation.begins:
                self._tried(joining, lambda: self._begin(joining), events)
            read = queue.rows(events)
            sentences = [(ids, branch.history) for _, branch, ids in read]
            requests = list(dict.fromkeys([request for request, _, _ in read]))
            run = partial(self._continuation.run, self.caches, sentences)
            logits = self._tried(requests, run, events) if read else None
        if self.recording is not None and read:
            self.recording.add(read, queue.waiting, queue.live, self.memory_use())
        if logits is not None:
            events += self._tried(requests, partial(self._choose, read, logits), events) or []
        self._give_back()
        return events

    def _choose(self, read: Rows, logits: Array) -> list[TokenEvent]:
        ready: list[Ready] = []
        for row, (request, branch, ids) in enumerate(read):
            branch.waiting = branch.waiting[ids.size :]
            if not branch.waiting.size:
                ready.append((request, branch, row))
                request.is_apart = False
        try:
            events = choose(ready, logits)
        except BaseException:
            start_kernels(logits)  # those that write pages which are given back now
            raise
        self._queue.live = [one for one in self._queue.live if one.branches]
        return events

    def _give_back(self) -> None:
        if self.is_idle:
            self._continuation.forget_steps()

    def _tried(
        self, requests: Sequence[GenerationRequest], act: Callable[[], Result],
        events: list[TokenEvent],
    ) -> Result | None:  # fmt: skip
        """The result of a part of a step; None where it failed."""
        try:
            return act()
        except Exception as error:
            events += self._queue.failed(requests, error)
        return None

    def _begin(self, joining: Sequence[GenerationRequest]) -> None:
        """Encode sources, and make first states; all sentences of a request share them."""
        sources = [request.source for request in joining]
        with self._continuation.graph() as graph:
            histories = self._continuation.begin(graph, sources, self.caches)
        for request, history in zip(joining, histories, strict=True):
            first, *others = request.branches
            for branch in others:
                branch.history = history.fork()
            first.history = history
