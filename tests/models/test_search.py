"""Searching: greedy is a beam of one, batches change nothing, wide beams are exact."""

from itertools import product

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.models import beam_search, greedy_search

SOURCES = [[3, 4, 5], [6], [4, 4, 4, 4, 4, 4, 7], [5, 3], [7, 6, 5, 4]]


def model_with(target_vocab=6, seed=0, spread=4.0, **options):
    """An untrained model with larger weights, so that its distributions differ and are peaked."""
    model = models.Seq2Seq(8, target_vocab, embed=6, hidden=8, rng=seed, **options)
    for parameter in model.parameters():
        parameter.value *= spread
    return model.eval()


def as_tuples(hypotheses):
    return [(tuple(h.tokens), h.is_finished) for h in hypotheses]


def every_sentence(vocabulary, begin_end, longest):
    """All sequences without the end mark that end within `longest` tokens, the end included."""
    tokens = [token for token in range(vocabulary) if token != begin_end]
    for length in range(longest):
        yield from product(tokens, repeat=length)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_of_one_is_greedy(seed, length_penalty):
    model = model_with(seed=seed, layers=1 + seed % 2)
    greedy = greedy_search(model, SOURCES, max_length=9)
    beams = beam_search(model, SOURCES, beam_size=1, max_length=9, length_penalty=length_penalty)
    assert as_tuples(greedy) == as_tuples([best for (best,) in beams])
    for one, (other,) in zip(greedy, beams, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_sentences_together_are_found_as_they_are_alone(seed):
    model = model_with(seed=seed)
    together = greedy_search(model, SOURCES, max_length=12)
    alone = [greedy_search(model, [source], max_length=12)[0] for source in SOURCES]
    assert as_tuples(together) == as_tuples(alone)

    options = {"beam_size": 4, "max_length": 8, "n_best": 3, "length_penalty": 0.5}
    together = beam_search(model, SOURCES, **options)
    for source, found in zip(SOURCES, together, strict=True):
        (expected,) = beam_search(model, [source], **options)
        assert as_tuples(found) == as_tuples(expected)
        assert np.allclose([h.score for h in found], [h.score for h in expected], atol=1e-5)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.5])
def test_a_wide_beam_finds_the_best_of_all_sentences(length_penalty):
    longest, n_best = 4, 5
    for seed in range(3):
        model = model_with(target_vocab=4, seed=seed, spread=2.0)
        source = SOURCES[seed]
        scored = []
        with db.Graph(grad=False) as graph:
            sentences = list(every_sentence(4, model.end, longest))
            losses = [model.loss(graph, source, np.array(s, np.int64)) for s in sentences]
            graph.forward()
            for sentence, loss in zip(sentences, losses, strict=True):
                score = -float(loss.value) / (len(sentence) + 1) ** length_penalty
                scored.append((score, sentence))
        best = sorted(scored, reverse=True)[:n_best]
        (found,) = beam_search(
            model,
            [source],
            beam_size=3**longest,
            max_length=longest,
            length_penalty=length_penalty,
            n_best=n_best,
        )
        assert [tuple(h.tokens) for h in found] == [sentence for _, sentence in best]
        assert np.allclose([h.score for h in found], [score for score, _ in best], atol=1e-4)


def test_a_wider_beam_finds_what_greedy_search_misses():
    better = 0
    for seed in range(6):
        model = model_with(seed=seed)
        greedy = greedy_search(model, SOURCES, max_length=6)
        beams = beam_search(model, SOURCES, beam_size=6, max_length=6)
        for one, (best,) in zip(greedy, beams, strict=True):
            if one.is_finished:
                assert best.is_finished and best.log_prob >= one.log_prob - 1e-4
                better += best.log_prob > one.log_prob + 1e-3
    assert better > 0


def test_log_probabilities_are_those_of_the_loss():
    model = model_with(spread=2.0)
    found = [h for h in greedy_search(model, SOURCES, max_length=30) if h.is_finished]
    assert found
    for hypothesis, source in zip(greedy_search(model, SOURCES, 30), SOURCES, strict=True):
        if hypothesis.is_finished:
            with db.Graph(grad=False) as graph:
                loss = model.loss(graph, source, np.array(hypothesis.tokens, np.int64))
                assert -float(loss.value) == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_what_does_not_end_is_cut_off_and_says_so():
    model = model_with()
    model.output.bias.value[model.end] = -1e4
    for hypothesis in greedy_search(model, SOURCES, max_length=5):
        assert (len(hypothesis.tokens), hypothesis.is_finished) == (5, False)
    for found in beam_search(model, SOURCES, beam_size=3, max_length=5, n_best=3):
        assert [(len(h.tokens), h.is_finished) for h in found] == [(5, False)] * 3
        assert found[0].score >= found[1].score >= found[2].score


def test_a_sentence_may_be_empty():
    model = model_with()
    model.output.bias.value[model.end] = 1e4
    for hypothesis in greedy_search(model, SOURCES):
        assert hypothesis.tokens == [] and hypothesis.is_finished


def test_no_sources_give_no_hypotheses():
    assert greedy_search(model_with(), []) == []
    assert beam_search(model_with(), []) == []


def test_the_model_searches_in_evaluation_mode_and_keeps_its_own():
    model = model_with(dropout=0.9)
    expected = as_tuples(greedy_search(model, SOURCES, max_length=8))
    model.train()
    assert as_tuples(greedy_search(model, SOURCES, max_length=8)) == expected
    assert model.training and model.encoder.training


def test_a_model_in_float64_is_searched_in_float64():
    model = model_with().astype(np.float64)
    assert len(beam_search(model, SOURCES, beam_size=2, max_length=4)) == len(SOURCES)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 0},
        {"beam_size": 2, "n_best": 3},
        {"n_best": 0},
        {"length_penalty": -0.1},
        {"length_penalty": float("nan")},
    ],
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="1 <= n_best <= beam_size, 0 <= length_penalty"):
        beam_search(model_with(), SOURCES, **options)


class Bigrams(models.Module):
    """The next token depends on the last one and on a vector of the sentence."""

    begin, end = 0, 1

    def __init__(self):
        rng = np.random.default_rng(0)
        self.table = db.Parameter(rng.standard_normal((6, 5)).astype(np.float32))
        self.weight = db.Parameter(rng.standard_normal((6, 5)).astype(np.float32))

    def start(self, graph, source):
        memory = F.lookup(graph, self.table, source)
        return (F.sum(memory, dim=0),), (memory,)

    def step(self, graph, tokens, state, memories, counts):
        state = F.lookup(graph, self.table, tokens) + state[0] * 0.5
        return F.linear(state, self.weight), (state,)


def test_a_search_runs_where_the_parameters_are(cuda):
    model = Bigrams()
    sources = [[3, 4, 5], [2], [5, 5]]
    beams = dict(beam_size=3, max_length=5, n_best=2)
    here = greedy_search(model, sources, max_length=5), beam_search(model, sources, **beams)
    model.to("cuda")
    before = queue().launches
    there = greedy_search(model, sources, max_length=5), beam_search(model, sources, **beams)
    assert queue().launches > before
    assert as_tuples(there[0]) == as_tuples(here[0])
    assert [as_tuples(found) for found in there[1]] == [as_tuples(found) for found in here[1]]
    assert there[0][0].log_prob == pytest.approx(here[0][0].log_prob, rel=1e-5)
