"""`choose`: the next token of each sentence of a request whose logits have come."""

from __future__ import annotations

import numpy as np

from dynbatch.generation import sampling
from dynbatch.generation.beams import Beams
from dynbatch.generation.requests import (
    END,
    LENGTH,
    STOP,
    Branch,
    Generated,
    GenerationRequest,
    TokenEvent,
)
from dynbatch.generation.rows import LogitsRow

Scored = list[tuple[Branch, LogitsRow]]
"""Sentences, each with the logits of its next token."""


def choose(request: GenerationRequest) -> list[TokenEvent]:
    """Choose the next tokens of the sentences whose logits have come.

    The sentences of a beam search go on together, once the logits of all have come.
    """
    pairs = [(branch, branch.row) for branch in request.branches if branch.row is not None]
    if request.beams is not None:
        is_whole = len(pairs) == len(request.branches)
        return _extend_beams(request, request.beams, pairs) if is_whole else []
    if pairs and not request.is_begun:
        request.is_begun = True
        pairs = _forked(request, *pairs[0])
    events = []
    for branch, row in pairs:
        token = _next_token(request, branch, row)
        events.append(_append(request, branch, token, float(row.log_probs[token])))
    return events


def _next_token(request: GenerationRequest, branch: Branch, row: LogitsRow) -> int:
    processing, config = branch.processing, request.config
    if processing.is_trivial and not config.do_sample:
        return row.best
    scores = processing.apply(row.values.copy())
    if not config.do_sample:
        return int(scores.argmax())
    place = np.array([branch.random]), np.array([processing.count])
    cut = sampling.cut(scores[None], config)
    return int(sampling.draw(cut, sampling.uniforms(*place))[0])


def _forked(request: GenerationRequest, branch: Branch, row: LogitsRow) -> Scored:
    """The sentence as often as samples are wanted; all share the prompt's pages."""
    count = request.config.num_return_sequences
    streams = sampling.streams(branch.random, count)
    for number in range(1, count):
        request.branches.append(_copy(request, branch, number))
    for one, stream in zip(request.branches, streams, strict=True):
        one.random = stream
    return [(one, row) for one in request.branches]


def _copy(request: GenerationRequest, branch: Branch, number: int) -> Branch:
    return Branch(
        number, branch.history.fork(), branch.waiting, branch.processing.fork(),
        request.new_stream(), branch.random, list(branch.log_probs), branch.text,
    )  # fmt: skip


def _append(request: GenerationRequest, branch: Branch, token: int, log_prob: float) -> TokenEvent:
    """Add a token to a sentence, which may end there."""
    branch.processing.take(token)
    branch.log_probs.append(log_prob)
    branch.waiting, branch.row = np.array([token], np.int64), None
    is_end = token in request.config.eos_token_id
    reason = END if is_end else LENGTH if branch.processing.count >= request.limit else ""
    text = ""
    if branch.stream is not None:
        text = "" if is_end else branch.stream.put(token)
        if branch.stream.is_stopped:
            reason = STOP
        elif reason:
            text += branch.stream.end()
    branch.text += text
    if reason:
        branch.history.close()
        request.branches.remove(branch)
        request.results[branch.number] = Generated(
            tuple(branch.processing.result), tuple(branch.log_probs), sum(branch.log_probs),
            reason, branch.text,
        )  # fmt: skip
    return TokenEvent(request.number, branch.number, token, log_prob, text, reason)


def _extend_beams(request: GenerationRequest, beams: Beams, pairs: Scored) -> list[TokenEvent]:
    log_probs = np.stack([row.log_probs for _, row in pairs]).astype(np.float64)
    scores = np.stack(
        [b.processing.apply(row.copy()) for (b, _), row in zip(pairs, log_probs, strict=True)]
    )
    parents, tokens = beams.extend(scores, log_probs)
    before, request.branches = request.branches, []
    for number, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        branch = _copy(request, before[parent], number)
        branch.processing.take(int(token))
        branch.waiting = np.array([token], np.int64)
        request.branches.append(branch)
    for branch in before:
        branch.history.close()
    return _beam_results(request, beams) if beams.is_done else []


def _beam_results(request: GenerationRequest, beams: Beams) -> list[TokenEvent]:
    events = []
    for number, one in enumerate(beams.results()):
        reason = END if one.is_finished else LENGTH
        ids = one.tokens[:-1] if one.is_finished else one.tokens
        text = "" if request.tokenizer is None else request.tokenizer.decode(ids)
        request.results[number] = Generated(one.tokens, one.log_probs, one.score, reason, text)
        events.append(TokenEvent(request.number, number, None, text=text, reason=reason))
    return events
