"""`choose`: the next tokens of all sentences whose logits have come in a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, DType, device_of
from dynbatch.generation import sampling
from dynbatch.generation.beams import Beams
from dynbatch.generation.processing import joined
from dynbatch.generation.requests import (
    END,
    LENGTH,
    STOP,
    Branch,
    Candidates,
    Generated,
    GenerationRequest,
    TokenEvent,
)
from dynbatch.kernels.arrays import copy, snapshot
from dynbatch.kernels.choosing.draws import cut_rows, draw_rows
from dynbatch.kernels.choosing.edits import edit_rows
from dynbatch.kernels.choosing.ranks import rank_rows, take_from_rows
from dynbatch.kernels.choosing.results import StepResults, start_kernels
from dynbatch.kernels.losses.cross_entropy import Targets, softmax_loss
from dynbatch.kernels.matrices import ends_of
from dynbatch.kernels.rows import gather_rows
from dynbatch.kernels.segment import sum_segments
from dynbatch.kernels.softmax import log_softmax

Ready = tuple[GenerationRequest, Branch, int]
"""A sentence whose next token can be chosen, and its row of logits."""


def choose(ready: Sequence[Ready], logits: Array) -> list[TokenEvent]:
    """Choose the next tokens of sentences, by logits (N, V) in any order of rows.

    The sentences of a beam search go on together, once the logits of all have come. A hook or a
    tokenizer that raises ends its own request. Of logits on a GPU the host reads what was chosen
    alone, in one copy.
    """
    searched: list[Ready] = []
    sentences: list[Ready] = []
    for one in ready:
        request, branch, row = one
        if request.beams is not None:
            searched.append(one)
        elif request.is_begun:
            sentences.append(one)
        else:
            sentences += [(request, sample, row) for sample in _begun(request, branch)]
    wanted = max([request.beams.wanted for request, _, _ in searched if request.beams], default=0)
    ranks = len(searched), min(wanted, logits.shape[1])
    results = StepResults(logits, [(len(sentences),), ranks], [(len(sentences),), ranks, ranks])
    events: list[TokenEvent] = []
    if sentences:
        given = _rows_of(sentences, logits)
        events += _draw(sentences, given, results.ids[0], results.numbers[0])
    if searched:
        events += _rank(searched, _rows_of(searched, logits), results.ids[1], results.numbers[1:])
    (tokens, ranked), (losses, *found) = results.read()
    return [*events, *_appended(sentences, tokens, losses), *_extended(searched, ranked, *found)]


def _rows_of(sentences: Sequence[Ready], logits: Array) -> Array:
    """The logits of each sentence (len(sentences), V)."""
    rows = [row for _, _, row in sentences]
    if rows == list(range(len(logits))):
        return logits
    shape = len(rows), logits.shape[1]
    out: Array = device_of(logits).xp.empty(shape, logits.dtype)
    gather_rows(logits, np.array(rows, np.int64), out)
    return out


def _begun(request: GenerationRequest, branch: Branch) -> list[Branch]:
    """The sentence as often as samples are wanted; all share the prompt's pages."""
    request.is_begun = True
    count = request.config.num_return_sequences
    streams = sampling.streams(branch.random, count)
    for number in range(1, count):
        request.branches.append(_copy(request, branch, number))
    for one, stream in zip(request.branches, streams, strict=True):
        one.random = stream
    return list(request.branches)


def _copy(request: GenerationRequest, branch: Branch, number: int) -> Branch:
    return Branch(
        number, branch.history.fork(), branch.waiting, branch.processing.fork(),
        request.new_stream(), branch.random, list(branch.log_probs), branch.text,
    )  # fmt: skip


def _draw(
    sentences: Sequence[Ready], logits: Array, tokens: Array, losses: Array
) -> list[TokenEvent]:
    """Choose a token for each sentence, with its cross-entropy; return what failed."""
    scores, events = _processed(sentences, logits)
    cut = [k for k, (request, _, _) in enumerate(sentences) if request.cut is not None]
    if cut:
        scores = snapshot(logits) if scores is logits else scores
        cuts = np.tile([1.0, 0.0, 1.0, 0.0], (len(sentences), 1))
        cuts[cut] = [sentences[k][0].cut for k in cut]
        cut_rows(scores, cuts)
    draw_rows(scores, _uniforms(sentences), tokens)
    softmax_loss(logits, None, Targets(tokens, np.ones(len(sentences), logits.dtype)), losses)
    return events


def _appended(sentences: Sequence[Ready], tokens: Array, losses: Array) -> list[TokenEvent]:
    """Add a token to each sentence, which may end there."""
    given, events = tokens.tolist(), list[TokenEvent]()
    # First all that a tokenizer does: if it is interrupted, no sentence has its token yet.
    pieces = [
        _piece(request, branch, token, events)
        for (request, branch, _), token in zip(sentences, given, strict=True)
    ]
    log_probs = np.subtract(0, losses).tolist()
    ended: list[tuple[GenerationRequest, Branch, str]] = []
    for (request, branch, _), (text, reason), token, log_prob, waiting in zip(
        sentences, pieces, given, log_probs, tokens[:, None], strict=True
    ):
        if request.branches:
            branch.processing.take(token)
            branch.log_probs.append(log_prob)
            branch.waiting, branch.text = waiting, branch.text + text
            number = request.number
            events.append(TokenEvent(number, branch.number, token, log_prob, text, reason))
            if reason:
                ended.append((request, branch, reason))
    _end(ended, losses.dtype)
    return events


def _piece(
    request: GenerationRequest, branch: Branch, token: int, events: list[TokenEvent]
) -> tuple[str, str]:
    """The text that a token makes certain, and why its sentence ends there, if it does."""
    stream = branch.stream
    is_end = token in request.config.ends
    is_last = branch.processing.count + 1 >= request.limit
    reason = END if is_end else LENGTH if is_last else ""
    if stream is None or not request.branches:  # it has failed, or a hook has cancelled it
        return "", reason
    try:
        text = "" if is_end else stream.put(token)
        if stream.is_stopped:
            return text, STOP
        return text + stream.end() if reason else text, reason
    except Exception as error:  # of the tokenizer
        events.append(request.fail(error))
        return "", reason


def _processed(sentences: Sequence[Ready], scores: Array) -> tuple[Array, list[TokenEvent]]:
    """A copy of the scores after penalties, bans and hooks, and what failed; themselves if none."""
    places = [k for k, (_, branch, _) in enumerate(sentences) if not branch.processing.is_plain]
    if not places:
        return scores, []
    scores, events = snapshot(scores), []
    of_rows = [sentences[k][1].processing for k in places]
    edit_rows(scores, joined(places, [one.edit() for one in of_rows], scores.dtype))
    for k, processing in zip(places, of_rows, strict=True):
        request = sentences[k][0]
        if processing.hook is not None and request.branches:
            start_kernels(scores)
            try:
                changed = processing.hooked(scores[k])
                device_of(scores).use()  # another may be current since
                copy(changed, scores[k])
            except Exception as error:
                events.append(request.fail(error))
    return scores, events


def _uniforms(sentences: Sequence[Ready]) -> Array:
    """A number for each sentence that draws; -1 for those that take the most probable token."""
    places = [k for k, (request, _, _) in enumerate(sentences) if request.config.do_sample]
    uniforms = np.full(len(sentences), -1.0)
    if places:
        branches = [sentences[k][1] for k in places]
        streams = np.array([branch.random for branch in branches], np.uint32)
        steps = np.array([branch.processing.count for branch in branches], np.uint32)
        uniforms[places] = sampling.uniforms(streams, steps)
    return uniforms


def _end(ended: Sequence[tuple[GenerationRequest, Branch, str]], dtype: DType) -> None:
    """Give back what sentences hold that have ended, each for a reason, and keep the results."""
    scores = np.empty((len(ended), 1), dtype)  # with the bits that sums of a graph have
    log_probs = [one for _, branch, _ in ended for one in branch.log_probs]
    ends = ends_of([len(branch.log_probs) for _, branch, _ in ended])
    sum_segments(np.array(log_probs, dtype)[:, None], ends, scores)
    for (request, branch, reason), score in zip(ended, scores[:, 0].tolist(), strict=True):
        branch.history.close()
        request.branches.remove(branch)
        request.results[branch.number] = Generated(
            tuple(branch.processing.result), tuple(branch.log_probs), score, reason, branch.text
        )


def _rank(
    sentences: Sequence[Ready], logits: Array, tokens: Array, found: Sequence[Array]
) -> list[TokenEvent]:
    """Rank the extensions of beams, with scores and log-probabilities; return what failed."""
    log_probs: Array = device_of(logits).xp.empty(logits.shape, logits.dtype)
    offsets = np.arange(len(logits) + 1) * logits.shape[1]
    log_softmax(logits.reshape(-1, 1), offsets, log_probs.reshape(-1, 1))
    scores, events = _processed(sentences, log_probs)
    rank_rows(scores, tokens)
    for given, taken in zip((scores, log_probs), found, strict=True):
        take_from_rows(given, tokens, taken)
    return events


def _extended(
    sentences: Sequence[Ready], tokens: Array, scores: Array, log_probs: Array
) -> list[TokenEvent]:
    """Let the beams of requests go on of which all have come."""
    events: list[TokenEvent] = []
    for (_, branch, _), *candidates in zip(sentences, tokens, scores, log_probs, strict=True):
        branch.candidates = Candidates(*candidates)
    for request in dict.fromkeys([request for request, _, _ in sentences]):
        assert request.beams is not None
        if request.branches and all([branch.candidates for branch in request.branches]):
            events += _extend(request, request.beams)
    return events


def _extend(request: GenerationRequest, beams: Beams) -> list[TokenEvent]:
    given = [branch.candidates for branch in request.branches if branch.candidates]
    if not beams.is_done:  # it is, where an interrupt came before the results
        parents, tokens = beams.extend(*[np.array(each) for each in zip(*given, strict=True)])
    if beams.is_done:
        events = _beam_results(request, beams)
        request.close()
        return events
    before, request.branches = request.branches, []
    following = parents.tolist()
    for number, (parent, waiting) in enumerate(zip(following, tokens[:, None], strict=True)):
        branch = before[parent]
        if parent in following[number + 1 :]:
            branch = _copy(request, branch, number)
        else:  # the last that goes on from it takes what it has
            branch.number, branch.candidates = number, None
        branch.processing.take(int(waiting[0]))
        branch.waiting = waiting
        request.branches.append(branch)
    for parent, branch in enumerate(before):
        if parent not in following:
            branch.history.close()
    return []


def _beam_results(request: GenerationRequest, beams: Beams) -> list[TokenEvent]:
    events = []
    for number, one in enumerate(beams.results()):
        reason = END if one.is_finished else LENGTH
        ids = one.tokens[:-1] if one.is_finished else one.tokens
        text = "" if request.tokenizer is None else request.tokenizer.decode(ids)
        request.results[number] = Generated(one.tokens, one.log_probs, one.score, reason, text)
        events.append(TokenEvent(request.number, number, None, text=text, reason=reason))
    return events
