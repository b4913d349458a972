"""`RequestQueue`: which requests go on, what is read in a step, and who waits for memory."""

from __future__ import annotations

from collections.abc import Sequence

from dynbatch.backend import Array
from dynbatch.errors import OutOfMemory
from dynbatch.generation.pages import Caches
from dynbatch.generation.requests import Branch, GenerationRequest, TokenEvent

Rows = list[tuple[GenerationRequest, Branch, Array]]
"""Sentences, and the ids that are read of each."""


class RequestQueue:
    """The requests of an engine that have not ended.

    One that made a step fail, perhaps, is *apart*: until it has a token, it is read by itself, and
    nobody joins. So only those fail that fail alone.

    Args:
        step_tokens: most tokens that are read in a step, of prompts and of sources.
        limit:       most bytes of pages at once; None for any number.

    Attributes:
        waiting, live: requests without pages, and with them; the oldest first.
    """

    def __init__(self, caches: Caches, step_tokens: int, limit: int | None) -> None:
        self._caches = caches
        self._step_tokens = step_tokens
        self._limit = limit
        self.waiting: list[GenerationRequest] = []
        self.live: list[GenerationRequest] = []

    def bytes_at_most(self, request: GenerationRequest) -> int:
        """Bytes of the pages of a request whose results become as long as they may.

        Its sentences share the first rows, and begin a page behind them; or they share none, where
        they had to begin anew.
        """
        config, first, step = request.config, request.context.size, self._step_tokens
        count = max(config.num_beams, config.num_return_sequences)
        shared, of_each, apart = [
            self._caches.bytes_of(rows, step)
            for rows in (first, request.limit, first + request.limit)
        ]
        most = apart if count == 1 else max(count * apart, shared + count * of_each)
        return self._source_bytes(request) + most

    def _source_bytes(self, request: GenerationRequest) -> int:
        kept = self._caches.kept
        return 0 if request.source is None else kept.count(request.source.size) * kept.page_bytes

    def _bytes_next(self, request: GenerationRequest, more: int = 0) -> int:
        return sum([b.history.bytes_for(b.waiting.size + more) for b in request.branches])

    def _promised(self) -> int:
        """Bytes of the pages that live requests need for the ids that wait."""
        return sum([self._bytes_next(request) for request in self.live])

    def join(self) -> list[GenerationRequest]:
        """Let requests join while there are pages for their prompts.

        Of sources, which are encoded whole, at most `step_tokens` tokens join in one step, or one.
        """
        promised = 0 if self._limit is None else self._caches.lent_bytes + self._promised()
        joining: list[GenerationRequest] = []
        left = self._step_tokens
        is_apart = any([request.is_apart for request in self.live])
        while self.waiting and not is_apart:
            request = self.waiting[0]
            if self._limit is not None:
                promised += self._bytes_next(request, more=1) + self._source_bytes(request)
            is_beyond = self._limit is not None and promised > self._limit
            left -= 0 if request.source is None else request.source.size
            if (is_beyond and self.live) or ((request.is_apart or left < 0) and joining):
                break
            joining.append(request)
            self.live.append(request)
            del self.waiting[0]
            is_apart = request.is_apart
        return joining

    def rows(self, events: list[TokenEvent]) -> Rows:
        """Sentences to read now, with room for them; those that need one token come first.

        Where there are no pages, the youngest requests wait and begin anew later. Those that have
        none even alone end with an event.
        """
        kept: Rows = []
        live = set(self.live)
        for request, branch, ids in self._chosen():
            while request in live:
                error = self._reserve(branch, ids.size)
                if error is None:
                    kept.append((request, branch, ids))
                    break
                if len(self.live) == 1:
                    events += self.failed([request], error)
                else:
                    self.put_back([self.live[-1]])
                live = set(self.live)
                kept = [one for one in kept if one[0] in live]
        return kept

    def _chosen(self) -> Rows:
        apart = [request for request in self.live if request.is_apart]
        pairs = [(request, branch) for request in apart or self.live for branch in request.branches]
        pairs.sort(key=lambda pair: pair[1].waiting.size > 1)
        left, read = self._step_tokens, []
        for request, branch in pairs:
            ids = branch.waiting[:left]
            if ids.size:
                read.append((request, branch, ids))
                left -= ids.size
        return read

    def _reserve(self, branch: Branch, rows: int) -> OutOfMemory | None:
        if self._limit is not None:
            needed = self._caches.lent_bytes + branch.history.bytes_for(rows)
            if needed > self._limit:
                return OutOfMemory(
                    f"Engine: a request alone needs {needed:,} bytes of pages, and memory_limit is "
                    f"{self._limit:,}.\n  fix:  raise it, or give shorter prompts"
                )
        try:
            branch.history.reserve(rows)
        except OutOfMemory as error:
            return error
        return None

    def failed(self, requests: Sequence[GenerationRequest], error: Exception) -> list[TokenEvent]:
        """A step that read these requests has failed; each is tried apart, or ends if it was.

        Where memory was short for one, the others make room for it.
        """
        if len(requests) == 1:
            (request,) = requests
            others = [other for other in self.live if other is not request]
            if not (others and isinstance(error, OutOfMemory)):
                self.live = others
                return [request.fail(error)]
            self.put_back(others)
        for request in requests:
            request.is_apart = True
        self.put_back(requests)
        return []

    def put_back(self, requests: Sequence[GenerationRequest]) -> None:
        """Take pages away; they wait before all others, but for those that have ended."""
        for request in requests:
            request.restart()
        others = [request for request in self.waiting if request not in requests]
        waiting = [request for request in requests if request.branches] + others
        live = [request for request in self.live if request not in requests]
        self.waiting, self.live = waiting, live

    def forget(self, request: GenerationRequest) -> None:
        """Give back all that a request holds, which does not go on."""
        request.close()
        self.waiting, self.live = [
            [one for one in requests if one is not request]
            for requests in (self.waiting, self.live)
        ]
