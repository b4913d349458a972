"""`generate`: what it finds is the best there is, for any model, on any device."""

from itertools import product

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch.errors import ArgumentError, VocabularyError
from dynbatch.generation.reasons import LENGTH
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.memory.pool import default_pool
from tests.generation.tiny_models import tiny
from tests.marks import quick

ONE_PROMPT = ["abc", [1, 2, 3], (1, 2), np.array([1, 2, 3])]
SOURCES = [[3, 4, 5], [6], [], [4, 4, 4, 4, 4, 4, 7], [7, 6, 5, 4]]


def model_with(target_vocab=6, seed=0, spread=4.0, **options):
    """An untrained model with larger weights, so that its distributions differ and are peaked."""
    model = models.Seq2Seq(8, target_vocab, embed=6, hidden=8, rng=seed, **options)
    for parameter in model.parameters():
        parameter.value *= spread
    return model


def found_by(model, sources=SOURCES, most=6, **options):
    return db.generate(model, sources, max_new_tokens=most, eos_token_id=model.end, **options)


def tokens(results):
    return [[one.tokens for one in found] for found in results]


def every_sentence(vocabulary, end, longest):
    """All sequences that end within `longest` tokens, without their end."""
    others = [token for token in range(vocabulary) if token != end]
    for length in range(longest):
        yield from product(others, repeat=length)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "length_penalty": 0.0}])
def test_a_sentence_ends_at_the_models_own_end_unless_others_are_given(options):
    model = model_with(end=3)
    model.output.bias.value[3] += 2
    own = db.generate(model, SOURCES, max_new_tokens=6, **options)
    assert own == found_by(model, **options)
    assert "end" in {found[0].reason for found in own}
    endless = db.generate(model, SOURCES, max_new_tokens=6, eos_token_id=(), **options)
    assert {len(one.tokens) for found in endless for one in found} == {6}
    others = db.generate(model, SOURCES, max_new_tokens=6, eos_token_id=5, **options)
    assert others != own and others != endless


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_sentences(length_penalty, seed):
    longest, n_best = 4, 5
    model = model_with(target_vocab=4, seed=seed, spread=2.0).eval()
    model.output.bias.value[model.end] += 4  # so that all of the best end
    scored = []
    with db.Graph(grad=False) as graph:
        sentences = list(every_sentence(4, model.end, longest))
        losses = [model.loss(graph, SOURCES[seed], np.array(s, int)) for s in sentences]
        graph.forward()
        for sentence, loss in zip(sentences, losses, strict=True):
            score = -float(loss.value) / (len(sentence) + 1) ** length_penalty
            scored.append((score, (*sentence, model.end)))
    best = sorted(scored, reverse=True)[:n_best]
    (found,) = found_by(
        model, [SOURCES[seed]], longest, num_beams=3**longest, num_return_sequences=n_best,
        length_penalty=length_penalty,
    )  # fmt: skip
    assert [one.tokens for one in found] == [sentence for _, sentence in best]
    assert np.allclose([one.score for one in found], [score for score, _ in best], atol=1e-4)


def test_what_does_not_end_is_cut_off_and_says_so():
    model = model_with()
    model.output.bias.value[model.end] = -1e4
    for options in ({}, {"num_beams": 3, "num_return_sequences": 3}):
        for found in found_by(model, most=5, **options):
            assert {(len(one.tokens), one.reason) for one in found} == {(5, LENGTH)}
            assert [one.score for one in found] == sorted([one.score for one in found])[::-1]


def test_the_model_generates_in_evaluation_mode_and_keeps_its_own():
    model = model_with(dropout=0.9)
    expected = tokens(found_by(model.eval()))
    assert tokens(found_by(model.train())) == expected
    assert model.training and model.encoder.training


def test_no_prompts_give_no_results():
    assert found_by(model_with(), []) == []


def test_an_interrupt_leaves_nothing_on_loan():
    def interrupted(logits, ids):
        if len(ids) == 4:
            raise KeyboardInterrupt
        return logits

    used = default_pool.used_bytes
    for step_tokens in (1, 2048):  # with 1 there are others, which the last step did not read
        with pytest.raises(KeyboardInterrupt):
            db.generate(
                tiny("gpt2"), [[1, 2], [3], [5, 6]], max_new_tokens=6, process=interrupted,
                step_tokens=step_tokens,
            )  # fmt: skip
    assert default_pool.used_bytes == used


def test_a_source_that_the_model_refuses_ends_its_own_request_alone():
    model = model_with()  # sources have eight words, targets six
    config = db.GenerationConfig(max_new_tokens=4)
    engine = db.Engine(model, config)
    wrong, right = engine.add([3, 8]), engine.add([7, 3])
    events = list(engine.run())
    assert [event.request for event in events if event.error] == [wrong]
    assert engine.results(right) == db.generate(model, [[7, 3]], config)[0]
    with pytest.raises(VocabularyError, match="id 8"):
        engine.results(wrong)
    assert engine.caches.lent_bytes == 0


@pytest.mark.parametrize(
    "name", quick(["seq2seq", "writer"], ["seq2seq", "writer", "lstm", "gpt2", "marian"])
)
def test_a_gpu_finds_what_the_cpu_finds(name, cuda):
    model, sources = tiny(name), [[3, 4, 5], [2] * 70]
    beams = {"num_beams": 3, "num_return_sequences": 2}
    here = [db.generate(model, sources, max_new_tokens=5, **more) for more in ({}, beams)]
    model.to("cuda")
    before = queue().launches
    there = [db.generate(model, sources, max_new_tokens=5, **more) for more in ({}, beams)]
    assert queue().launches > before
    assert [tokens(found) for found in there] == [tokens(found) for found in here]
    assert there[0][0][0].score == pytest.approx(here[0][0][0].score, rel=1e-4)


@pytest.mark.parametrize("prompts", ONE_PROMPT, ids=str)
def test_one_prompt_is_not_a_list_of_prompts(prompts):
    with pytest.raises(ArgumentError, match=r"fix:  generate\(model, \[prompt\]\)"):
        db.generate(tiny("gpt2"), prompts, max_new_tokens=2)
