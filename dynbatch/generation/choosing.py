"""`choose`: the next tokens of all sentences whose logits have come in a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynbatch.backend import Array, device_of
from dynbatch.generation import sampling
from dynbatch.generation.growing import Ready, appended, copy_of, extended
from dynbatch.generation.processing import joined
from dynbatch.generation.requests import Branch, GenerationRequest, TokenEvent
from dynbatch.kernels.arrays import copy, snapshot
from dynbatch.kernels.choosing.draws import cut_rows, draw_rows
from dynbatch.kernels.choosing.edits import edit_rows
from dynbatch.kernels.choosing.ranks import rank_rows, take_from_rows
from dynbatch.kernels.choosing.results import StepResults, start_kernels
from dynbatch.kernels.losses.cross_entropy import Targets, softmax_loss
from dynbatch.kernels.rows import gather_rows
from dynbatch.kernels.segment import reduce_segments
from dynbatch.kernels.softmax import log_softmax


def choose(ready: Sequence[Ready], logits: Array) -> list[TokenEvent]:
    """Choose the next tokens of sentences, by logits (N, V) in any order of rows.

    The sentences of a beam search go on together, once the logits of all have come. A hook or a
    tokenizer that raises ends its own request, and so do logits that are NaN or infinite; where all
    tokens are at -∞, the sentence ends. Of logits on a GPU the host reads what was chosen alone, in
    one copy.
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
    draws, ranks = (len(sentences),), (len(searched), min(wanted, logits.shape[1]))
    changed = _changed(sentences), _changed(searched)
    peaks = (len(sentences) if changed[0] else 0,), (len(searched) if changed[1] else 0,)
    results = StepResults(logits, [draws, ranks], [draws, peaks[0], ranks, ranks, peaks[1]])
    events: list[TokenEvent] = []
    if sentences:
        rows = _rows_of(sentences, logits)
        events += _draw(sentences, rows, changed[0], results.ids[0], *results.numbers[:2])
    if searched:
        rows = _rows_of(searched, logits)
        events += _rank(searched, rows, changed[1], results.ids[1], *results.numbers[2:])
    ids, numbers = results.read()
    if sentences:
        events += appended(sentences, ids[0], *numbers[:2])
    if searched:
        events += extended(searched, ids[1], *numbers[2:])
    return events


def _changed(sentences: Sequence[Ready]) -> list[int]:
    """The sentences whose penalties, bans or hooks may change their logits."""
    return [k for k, (_, branch, _) in enumerate(sentences) if not branch.processing.is_plain]


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
    count = request.config.num_return_sequences
    first, *streams = sampling.streams(branch.random, count)
    branches = [branch, *[copy_of(request, branch, number) for number in range(1, count)]]
    for one, stream in zip(branches[1:], streams, strict=True):
        one.random = stream
    # All at once, or an interrupt would leave fewer sentences, or streams of streams.
    branch.random, request.branches, request.is_begun = first, branches, True
    return branches


def _draw(
    sentences: Sequence[Ready], logits: Array, changed: Sequence[int],
    tokens: Array, losses: Array, peaks: Array,
) -> list[TokenEvent]:  # fmt: skip
    """Choose a token for each sentence, with its cross-entropy and, where logits are changed, the
    largest one; return what failed."""
    scores, events = _processed(sentences, logits, changed, peaks)
    cut = [k for k, (request, _, _) in enumerate(sentences) if request.cut is not None]
    targets = Targets(tokens, np.ones(len(sentences), logits.dtype))
    with np.errstate(all="ignore"):  # of rows that are NaN, or -inf as a whole
        if cut:
            scores = snapshot(logits) if scores is logits else scores
            cuts = np.tile([1.0, 0.0, 1.0, 0.0], (len(sentences), 1))
            cuts[cut] = [sentences[k][0].cut for k in cut]
            cut_rows(scores, cuts)
        draw_rows(scores, _uniforms(sentences), tokens)
        softmax_loss(logits, None, targets, losses)
    return events


def _processed(
    sentences: Sequence[Ready], scores: Array, places: Sequence[int], peaks: Array
) -> tuple[Array, list[TokenEvent]]:
    """A copy of the scores after penalties, bans and hooks, and what failed; themselves if none.

    The largest of each row of a copy is written to `peaks`.
    """
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
    reduce_segments(np.maximum, scores.reshape(-1, 1), _ends_of_rows(scores), peaks[:, None], 0)
    return scores, events


def _ends_of_rows(x: Array) -> Array:
    ends: Array = np.arange(len(x) + 1) * x.shape[1]
    return ends


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


def _rank(
    sentences: Sequence[Ready], logits: Array, changed: Sequence[int],
    tokens: Array, scores: Array, log_probs: Array, peaks: Array,
) -> list[TokenEvent]:  # fmt: skip
    """Rank the extensions of beams, with scores and log-probabilities; return what failed."""
    of_all: Array = device_of(logits).xp.empty(logits.shape, logits.dtype)
    with np.errstate(all="ignore"):
        log_softmax(logits.reshape(-1, 1), _ends_of_rows(logits), of_all.reshape(-1, 1))
    ranked, events = _processed(sentences, of_all, changed, peaks)
    rank_rows(ranked, tokens)
    take_from_rows(ranked, tokens, scores)
    take_from_rows(of_all, tokens, log_probs)
    return events
