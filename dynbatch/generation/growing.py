"""Effects of chosen tokens on sentences: they are longer, or end, or their request fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynbatch.backend import Array, DType
from dynbatch.errors import NumericError
from dynbatch.generation.beams import Beams
from dynbatch.generation.reasons import END, LENGTH, NO_TOKEN, STOP
from dynbatch.generation.requests import (
    Branch,
    Candidates,
    Generated,
    GenerationRequest,
    TokenEvent,
)
from dynbatch.kernels.segment import sum_segments
from dynbatch.ragged import offsets_of

Ready = tuple[GenerationRequest, Branch, int]
"""A sentence whose next token can be chosen, and its row of logits."""


def appended(
    sentences: Sequence[Ready], tokens: Array, losses: Array, peaks: Array
) -> list[TokenEvent]:
    """Add a token to each sentence, which may end there; without one that may come it does."""
    events = _refused(sentences, np.isnan(losses), peaks)
    added: list[int | None] = tokens.tolist()
    for k in (peaks == -np.inf).nonzero()[0].tolist():
        added[k] = None
    # First all that a tokenizer does: if it is interrupted, no sentence has its token yet.
    pieces = [
        _piece(request, branch, token, events)
        for (request, branch, _), token in zip(sentences, added, strict=True)
    ]
    log_probs = np.subtract(0, losses).tolist()
    ended: list[Ending] = []
    for (request, branch, _), (text, reason), token, log_prob, waiting in zip(
        sentences, pieces, added, log_probs, tokens[:, None], strict=True
    ):
        if request.branches:
            log_prob = 0.0 if token is None else log_prob
            number = request.number
            events.append(TokenEvent(number, branch.number, token, log_prob, text, reason))
            if reason:
                last = () if token is None else ((token, log_prob),)
                ended.append(Ending(request, branch, last, branch.text + text, reason))
            elif token is not None:
                branch.log_probs.append(log_prob)  # first: one without a token is dropped again
                branch.processing.take(token)
                branch.waiting, branch.text = waiting, branch.text + text
    if ended:
        _end(ended, losses.dtype)
    return events


def _piece(
    request: GenerationRequest, branch: Branch, token: int | None, events: list[TokenEvent]
) -> tuple[str, str]:
    """The text that a token makes certain, and why its sentence ends there, if it does."""
    stream = branch.stream
    is_end = token in request.config.ends
    is_last = branch.processing.count + 1 >= request.limit
    reason = NO_TOKEN if token is None else END if is_end else LENGTH if is_last else ""
    if stream is None or not request.branches:  # it has failed, or a hook has cancelled it
        return "", reason
    try:
        text = "" if is_end or token is None else stream.put(token)
        if stream.is_stopped:
            return text, STOP
        return text + stream.end() if reason else text, reason
    except Exception as error:  # of the tokenizer
        events.append(request.fail(error))
        return "", reason


class Ending(NamedTuple):
    """A sentence that ends here.

    last: its last token and the log-probability, unless there is none.
    text: of all tokens.
    """

    request: GenerationRequest
    branch: Branch
    last: tuple[()] | tuple[tuple[int, float]]
    text: str
    reason: str


def _end(ended: Sequence[Ending], dtype: DType) -> None:
    """Keep the results of sentences, and give back what they hold."""
    scores = np.empty((len(ended), 1), dtype)  # with the bits that sums of a graph have
    log_probs = [[*one.branch.log_probs, *[last for _, last in one.last]] for one in ended]
    together = np.array([each for steps in log_probs for each in steps], dtype)
    sum_segments(together[:, None], offsets_of([len(steps) for steps in log_probs]), scores)
    for one, steps, score in zip(ended, log_probs, scores[:, 0].tolist(), strict=True):
        request, branch = one.request, one.branch
        tokens = *branch.processing.result, *[token for token, _ in one.last]
        # First: a sentence with a result has ended, wherever an interrupt comes.
        request.results[branch.number] = Generated(
            tokens, tuple(steps), score, one.reason, one.text
        )
        request.branches.remove(branch)
        branch.history.close()


def extended(
    sentences: Sequence[Ready], tokens: Array, scores: Array, log_probs: Array, peaks: Array
) -> list[TokenEvent]:
    """Let the beams of requests go on of which all have come."""
    events = _refused(sentences, np.isnan(log_probs.sum(axis=1)), peaks)
    for (_, branch, _), *candidates in zip(sentences, tokens, scores, log_probs, strict=True):
        branch.candidates = Candidates(*candidates)
    for request in dict.fromkeys([request for request, _, _ in sentences]):
        assert request.beams is not None
        if request.branches and all([branch.candidates for branch in request.branches]):
            events += _extend(request, request.beams)
    return events


def _extend(request: GenerationRequest, beams: Beams) -> list[TokenEvent]:
    candidates = [branch.candidates for branch in request.branches if branch.candidates]
    if not beams.is_done:  # it is, where an interrupt came before the results
        parents, tokens = beams.extend(*[np.array(each) for each in zip(*candidates, strict=True)])
    if beams.is_done:
        request.results, events = _beam_results(request, beams)
        request.close()
        return events
    before, branches = request.branches, list[Branch]()
    following = parents.tolist()
    for number, (parent, waiting) in enumerate(zip(following, tokens[:, None], strict=True)):
        branch = before[parent]
        if parent in following[number + 1 :]:
            branch = copy_of(request, branch, number)
        else:  # the last that goes on from it takes what it has
            branch.number, branch.candidates = number, None
        branch.processing.take(int(waiting[0]))
        branch.waiting = waiting
        branches.append(branch)
    request.branches = branches
    for parent, branch in enumerate(before):
        if parent not in following:
            branch.history.close()
    return []


def _beam_results(
    request: GenerationRequest, beams: Beams
) -> tuple[dict[int, Generated], list[TokenEvent]]:
    results, events = {}, []
    for number, one in enumerate(beams.results()):
        reason, ids = one.reason, one.tokens[:-1] if one.reason == END else one.tokens
        text = "" if request.tokenizer is None else request.tokenizer.decode(ids)
        results[number] = Generated(one.tokens, one.log_probs, one.score, reason, text)
        events.append(TokenEvent(request.number, number, None, text=text, reason=reason))
    return results, events


def copy_of(request: GenerationRequest, branch: Branch, number: int) -> Branch:
    """A sentence that begins as another one, and shares its pages."""
    return Branch(
        number, branch.history.fork(), branch.waiting, branch.processing.fork(),
        request.new_stream(), branch.random, list(branch.log_probs), branch.text,
    )  # fmt: skip


def _refused(sentences: Sequence[Ready], is_nan: Array, peaks: Array) -> list[TokenEvent]:
    """Fail the requests of which a log-probability is NaN, or the largest logit behind penalties
    and hooks NaN or infinite."""
    events = list[TokenEvent]()
    is_wrong = is_nan | ~(peaks < np.inf) if peaks.size else is_nan
    for k in is_wrong.nonzero()[0].tolist():
        request, branch, _ = sentences[k]
        if request.branches:  # none of its others has failed
            events.append(request.fail(_not_finite(request, branch, is_of_model=is_nan[k])))
    return events


def _not_finite(request: GenerationRequest, branch: Branch, *, is_of_model: bool) -> NumericError:
    behind = "" if is_of_model else ", behind penalties and hook"
    fix = (
        "look at its weights; Graph(guard=True) around a call names the first node that is not"
        if is_of_model
        else "let process(logits, tokens) return such logits, or choose a smaller penalty"
    )
    return NumericError(
        f"Engine: request {request.number}: the model's logits of token "
        f"{branch.processing.count + 1} are NaN or infinite{behind}.\n"
        f"  rule: logits are finite, or -inf for tokens that may not come\n  fix:  {fix}"
    )
