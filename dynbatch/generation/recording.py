"""`Recording`: what an engine did in each step, for a picture of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dynbatch.generation.pages import CacheMemory
from dynbatch.generation.request_queue import Rows
from dynbatch.generation.requests import GenerationRequest


class EngineStep(NamedTuple):
    """One step of an engine; requests are numbers.

    waiting: have no pages yet, or gave them back for others.
    prompts: whose prompts were read, or a part of them.
    tokens:  that were continued, by a token for each of their sentences.
    pausing: have joined, and were not read: the step was full.
    rows:    ids that the model read.
    memory:  bytes of the caches, once the rows were read.
    """

    waiting: tuple[int, ...]
    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    pausing: tuple[int, ...]
    rows: int
    memory: CacheMemory


class Recording:
    """The steps of an engine, `Engine(record=True)`.

    Attributes:
        steps: all so far.
        limit: the engine's `memory_limit` in bytes, or None.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.steps: list[EngineStep] = []

    def add(
        self,
        read: Rows,
        waiting: Iterable[GenerationRequest],
        live: Iterable[GenerationRequest],
        memory: CacheMemory,
    ) -> None:
        """Note a step, between its reading and its choice of tokens.

        Args:
            read:    what was read.
            waiting: requests without pages.
            live:    requests with pages.
        """
        numbers = dict.fromkeys([request.number for request, _, _ in read])
        prompts = {
            request.number for request, branch, ids in read if ids.size > 1 or not branch.log_probs
        }
        self.steps.append(
            EngineStep(
                waiting=tuple([request.number for request in waiting]),
                prompts=tuple([number for number in numbers if number in prompts]),
                tokens=tuple([number for number in numbers if number not in prompts]),
                pausing=tuple([one.number for one in live if one.number not in numbers]),
                rows=sum([ids.size for _, _, ids in read]),
                memory=memory,
            )
        )
