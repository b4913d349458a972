from itertools import product

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, NumericError, ShapeError, VocabularyError
from tests.kernels.table.losses import of_paths, spelled


def losses_and_gradients(sentences, zero_infinity=True):
    """Losses and gradients of all sentences in one mini-batch, as bytes."""
    with db.Graph(dtype="float32") as graph:
        frames = [F.input(graph, x).keep() for x, _ in sentences]
        losses = [
            F.ctc_loss(F.log_softmax(x), ids, blank=1, zero_infinity=zero_infinity).keep()
            for x, (_, ids) in zip(frames, sentences, strict=True)
        ]
        graph.backward(db.total(losses))
        return [
            (loss.value.tobytes(), x.gradient.tobytes())
            for loss, x in zip(losses, frames, strict=True)
        ]


def test_bits_do_not_depend_on_the_other_sentences():
    rng = np.random.default_rng(0)
    sentences = [
        (rng.standard_normal((frames, 7), np.float32), rng.integers(2, 7, labels))
        for frames, labels in ((40, 12), (3, 0), (0, 0), (2, 5), (90, 33))
    ]
    alone = [losses_and_gradients([each])[0] for each in sentences]
    assert losses_and_gradients(sentences) == alone
    assert not any(np.frombuffer(part, np.float32).any() for part in alone[3])  # too few frames


def test_an_infinite_loss_is_refused():
    with pytest.raises(NumericError, match="the loss is inf"):
        losses_and_gradients([(np.zeros((2, 3), np.float32), [0, 0])], zero_infinity=False)


@pytest.mark.parametrize(
    ("shape", "ids", "blank", "error", "message"),
    [
        ((3,), [1], 0, ShapeError, r"x has shape \(3,\)"),
        ((4, 3), [1, 3], 0, VocabularyError, "target 3 at position 1 of 2 is outside the 3"),
        ((4, 3), [1, 2], 2, VocabularyError, "target 2 at position 1 of 2 is the blank"),
        ((4, 3), [1], 3, ArgumentError, "blank is 3 of 3 classes"),
        ((4, 3), [[1]], 0, ShapeError, "got int64 of 2 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(shape, ids, blank, error, message):
    with db.Graph() as graph, pytest.raises(error, match=message):
        F.ctc_loss(F.constant(graph, 0.0, shape), ids, blank)


def test_decoding_finds_the_labels_of_most_probability():
    rng = np.random.default_rng(3)
    for _ in range(5):
        x = rng.standard_normal((4, 3))
        x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
        spellings = {tuple(spelled(path, 0)) for path in product(range(3), repeat=4)}
        losses = {ids: of_paths(x, np.array(ids, int), 0)[0] for ids in spellings}
        labels, log_prob = models.ctc_beam_search(x, beams=100)
        assert tuple(labels.tolist()) == min(losses, key=losses.__getitem__)
        np.testing.assert_allclose(-log_prob, min(losses.values()))
        assert models.ctc_greedy(x).tolist() == spelled(x.argmax(axis=1), 0)
    assert models.ctc_greedy(np.zeros((0, 3))).tolist() == []
    with pytest.raises(ArgumentError, match=r"log_probs is a list"):
        models.ctc_greedy([1.0])
    for decode in (models.ctc_greedy, models.ctc_beam_search):
        for blank in (3, -1, None):
            with pytest.raises(ArgumentError, match=rf"blank is {blank} of 3 classes"):
                decode(np.zeros((2, 3)), blank=blank)
