"""Penalties and bans, against the formulas written token by token."""

import numpy as np
import pytest

from dynbatch.errors import ArgumentError
from dynbatch.generation.config import GenerationConfig
from dynbatch.generation.processing import LogitsProcessing, joined
from dynbatch.kernels.choosing.edits import edit_rows

V = 12


def after(config, context, result, limit=100, **given):
    processing = LogitsProcessing(config, context, V, limit, **given)
    for token in result:
        processing.take(token)
    return processing


def applied(processing, row):
    """A copy of a row of logits after all edits and the hook."""
    rows = row[None].copy()
    edit_rows(rows, joined([0], [processing.edit()], rows.dtype))
    return processing.hooked(rows[0])


def expected(row, config, context, result):
    """Each token's logit by itself."""
    tokens = [*context, *result]
    found = row.astype(np.float64)
    for token in range(V):
        x = found[token]
        if token in tokens:
            r = config.repetition_penalty
            x = x / r if x > 0 else x * r
        if token in result:
            x -= config.presence_penalty + config.frequency_penalty * result.count(token)
        n = config.no_repeat_ngram_size
        if n and len(tokens) >= n:
            candidate = (*tokens[len(tokens) - n + 1 :], token)
            if any(tuple(tokens[k : k + n]) == candidate for k in range(len(tokens) - n + 1)):
                x = -np.inf
        for word in config.bad_words_ids:
            is_end = len(word) == 1 and token in config.eos_token_id
            if tuple([*tokens, token][-len(word) :]) == word and not is_end:
                x = -np.inf
        if token in config.suppress_tokens or token not in (config.allowed_tokens or range(V)):
            x = -np.inf
        if token in config.eos_token_id and len(result) < config.min_new_tokens:
            x = -np.inf
        if not result and token in config.begin_suppress_tokens:
            x = -np.inf
        found[token] = x
    return found


@pytest.mark.parametrize("seed", range(30))
def test_random_settings_give_what_the_formulas_give(seed):
    rng = np.random.default_rng(seed)
    config = GenerationConfig(
        repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
        presence_penalty=rng.choice([0.0, 0.5]), frequency_penalty=rng.choice([0.0, 0.2]),
        no_repeat_ngram_size=int(rng.integers(0, 4)), min_new_tokens=int(rng.integers(0, 6)),
        bad_words_ids=(tuple(rng.integers(0, V, 2)), (int(rng.integers(V)),)),
        suppress_tokens=(int(rng.integers(V)),), begin_suppress_tokens=(3,),
        allowed_tokens=tuple(range(1, V)) if seed % 3 else None, eos_token_id=(0, 5),
    )  # fmt: skip
    for length in range(7):
        context = rng.integers(0, V, rng.integers(1, 6)).tolist()
        result = rng.integers(0, V, length).tolist()
        row = rng.normal(size=V)
        processing = after(config, context, result)
        found = applied(processing, row)
        np.testing.assert_allclose(found, expected(row, config, context, result), rtol=1e-12)
        assert not processing.is_plain or (found == row).all()


def test_a_row_without_anything_to_do_is_known_as_such():
    assert after(GenerationConfig(eos_token_id=(1,)), [3], [2]).is_plain
    assert not after(GenerationConfig(repetition_penalty=1.1), [3], []).is_plain


def test_an_end_mark_is_no_bad_word_but_may_be_the_last_of_one():
    config = GenerationConfig(bad_words_ids=((5,), (3, 7), (2,)), eos_token_id=(5, 7))
    for result, banned in ([], [2]), ([3], [2, 7]):
        row = applied(after(config, [1], result), np.zeros(V))
        assert np.flatnonzero(row == -np.inf).tolist() == banned


def test_a_prefix_comes_first_and_forced_marks_at_their_places():
    config = GenerationConfig(forced_bos_token_id=4, forced_eos_token_id=7)
    processing = LogitsProcessing(config, [1], V, limit=3, prefix=())
    chosen = []
    for _ in range(3):
        chosen.append(int(applied(processing, np.arange(V, dtype=float)).argmax()))
        processing.take(chosen[-1])
    assert chosen == [4, V - 1, 7]
    with_prefix = LogitsProcessing(GenerationConfig(), [1], V, 9, prefix=(2, 6))
    for token in (2, 6):
        row = applied(with_prefix, np.arange(V, dtype=float))
        assert np.flatnonzero(row > -np.inf).tolist() == [token]
        with_prefix.take(token)
    assert with_prefix.is_plain


def test_a_fork_goes_on_by_itself():
    config = GenerationConfig(no_repeat_ngram_size=2, frequency_penalty=1.0)
    one = after(config, [1, 2], [3])
    other = one.fork()
    one.take(1)
    row = np.zeros(V)
    assert one.result == [3, 1] and other.result == [3]
    assert applied(one, row)[2] == -np.inf and applied(other, row)[2] == 0


def test_a_hook_sees_the_ids_and_what_it_returns_is_checked():
    seen = []

    def hook(logits, tokens):
        seen.append(tokens.tolist())
        return logits + np.eye(V)[5]

    processing = after(GenerationConfig(), [1, 2], [9], hook=hook)
    assert applied(processing, np.zeros(V))[5] == 1 and seen == [[1, 2, 9]]
    for wrong in (np.zeros(3), np.zeros(V, int)):
        broken = after(GenerationConfig(), [1], [], hook=lambda logits, tokens, w=wrong: w)
        with pytest.raises(ArgumentError, match="the hook returned"):
            applied(broken, np.zeros(V))


@pytest.mark.parametrize(
    "fields", [{"suppress_tokens": V}, {"bad_words_ids": ((1, V),)}, {"forced_bos_token_id": V}]
)
def test_ids_that_the_model_does_not_have_are_refused(fields):
    with pytest.raises(ArgumentError, match=f"{next(iter(fields))} has id {V}"):
        after(GenerationConfig(**fields), [1], [])


@pytest.mark.parametrize("fields", [{}, {"suppress_tokens": 3}, {"bad_words_ids": ((3,),)}])
def test_settings_that_allow_no_token_are_refused(fields):
    allowed = (3,) if fields else ()
    with pytest.raises(ArgumentError, match="every allowed token is suppressed"):
        after(GenerationConfig(allowed_tokens=allowed, **fields), [1], [])
