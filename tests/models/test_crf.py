import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F


def test_a_sequence_that_no_token_alone_decides_is_learned():
    """Tags alternate, the first depends on the last token: only the chain can tell."""
    rng = np.random.default_rng(0)
    tagger = models.LSTM(2, 8, rng=1)
    project, crf = models.Linear(8, 2, rng=2), models.CRF(2, rng=3)
    parameters = [*project.parameters(), *crf.parameters(), *tagger.parameters()]
    optimizer = optim.Adam(parameters, lr=0.05)

    def sentences(count):
        for length in rng.integers(1, 9, count).tolist():
            symbols = rng.integers(0, 2, length)
            tags = (symbols[-1] + np.arange(length)[::-1]) % 2
            yield np.eye(2)[symbols], tags

    for _ in range(60):
        with db.Graph() as graph:
            losses = [
                crf.loss(project(tagger(F.input(graph, x))), tags) for x, tags in sentences(16)
            ]
            graph.backward(F.mean(losses))
        optimizer.step()
    held_out = list(sentences(50))
    with db.Graph(grad=False) as graph:
        found = crf.decode([project(tagger(F.input(graph, x))) for x, _ in held_out])
    for tags, (_, expected) in zip(found, held_out, strict=True):
        assert np.array_equal(tags, expected)


def test_decoding_gives_whole_numbers_on_every_device(device):
    crf = models.CRF(4, rng=0).to(device)
    crf.transitions.assign(10 * np.eye(4, k=1, dtype=np.float32))
    with db.Graph(device) as graph:
        found = crf.decode([F.constant(graph, 0.0, (length, 4)) for length in (4, 0, 3)])
    assert all(tags.dtype == np.int64 for tags in found)
    assert found[0].tolist() == [0, 1, 2, 3] and found[1].tolist() == []
    assert np.diff(found[2]).tolist() == [1, 1]


def test_decoding_nothing_is_refused():
    with pytest.raises(db.errors.EmptyBatchError, match=r"CRF\.decode: no sentences"):
        models.CRF(2).decode([])


@pytest.mark.parametrize(
    ("shape", "tags", "error", "message"),
    [
        (
            (3, 4),
            [0, 1, 2],
            db.errors.ShapeError,
            r"x \(3, 4\) and transitions .*\(2, 2\) differ in K",
        ),
        ((2,), [0], db.errors.ShapeError, r"x has shape \(2,\)"),
        ((3, 2), [0, 1], db.errors.ShapeError, "2 targets for crf"),
        ((2, 2), [0, 2], db.errors.VocabularyError, "target 2 at position 1"),
        ((2, 2), [0, -100], db.errors.VocabularyError, "fix:  map unknown targets to one class\n"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(shape, tags, error, message):
    crf = models.CRF(2)
    with db.Graph() as graph, pytest.raises(error, match=message):
        crf.loss(F.constant(graph, 0.0, shape), tags)


def test_frozen_scores_stay_and_emissions_still_learn():
    crf = models.CRF(3, rng=0)
    crf.transitions.frozen = True
    with db.Graph() as graph:
        emissions = F.constant(graph, 0.0, (5, 3)).keep()
        graph.backward(crf.loss(emissions, [0, 1, 2, 1, 0]))
        assert np.abs(emissions.gradient).sum() > 1
    assert crf.transitions.grad is None and np.abs(crf.start.grad).sum() > 0.5


@pytest.mark.parametrize(
    ("segments", "error", "message"),
    [
        ([(2, 0)], db.errors.ShapeError, "segments of 2 tokens for a sentence of 3"),
        ([(3, 0)], db.errors.ShapeError, "segment 0 has 3 tokens, of at most 2"),
        ([(1, 0), (2, 4)], db.errors.VocabularyError, "target 4 at position 1 of 2"),
        ([1, 2], db.errors.ArgumentError, "segments is a list"),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments, error, message):
    crf = models.SemiCRF(4, longest=2)
    with db.Graph() as graph, pytest.raises(error, match=message):
        crf.loss(F.constant(graph, 0.0, (3, 8)), segments)


def test_segments_are_decoded_alike_on_every_device(device):
    crf = models.SemiCRF(2, longest=3, rng=0).to(device)
    scores = np.zeros((5, 6), np.float32)
    scores[1, 2], scores[4, 5] = 9, 9  # two tokens of label 0, then three of label 1
    with db.Graph(device) as graph:
        decoded = crf.decode([F.input(graph, scores), F.constant(graph, 0.0, (0, 6))])
    assert decoded[0].tolist() == [[2, 0], [3, 1]] and decoded[1].shape == (0, 2)
