import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F

rng = np.random.default_rng(0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_is_the_cross_entropy_of_products(reduction):
    found, expected, gradients = [], [], []
    for fused in (True, False):
        with db.Graph(dtype="float64") as graph:
            sentences, losses = [], []
            generator = np.random.default_rng(1)
            for queries, keys in ((3, 4), (0, 2), (1, 1), (5, 9)):
                q, k = [
                    F.input(graph, generator.standard_normal((n, 3))).keep()
                    for n in (queries, keys)
                ]
                ids = generator.integers(0, keys, queries)
                ids[:1] = -100
                scores = q @ F.transpose(k)
                losses.append(
                    F.pointer_loss(q, k, ids, reduction=reduction)
                    if fused
                    else F.cross_entropy(scores, ids, reduction=reduction)
                )
                sentences += [q, k]
            (found if fused else expected).extend(graph.values(losses))
            graph.backward(F.sum([loss * loss for loss in losses]))
            gradients.append([node.gradient for node in sentences])
    np.testing.assert_allclose(found, expected, atol=1e-14)
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13)


def test_large_scores_do_not_overflow():
    with db.Graph() as graph:
        q, k = F.input(graph, [[1000.0]]).keep(), F.input(graph, [[1.0], [-1.0]])
        loss = F.pointer_loss(q, k, [1])
        assert float(loss.value) == 2000
        graph.backward(loss)
        assert q.gradient.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("queries", "keys", "targets", "error", "message"),
    [
        ((2, 3), (2, 4), [0, 0], db.errors.ShapeError, r"q \(2, 3\) and k \(2, 4\) differ in D"),
        ((3,), (2, 3), [0], db.errors.ShapeError, r"q has shape \(3,\)"),
        ((1, 3), (0, 3), [-100], db.errors.ShapeError, "1 queries and no keys"),
        ((2, 3), (4, 3), [0], db.errors.ShapeError, "1 targets for pointer_loss"),
        ((1, 3), (4, 3), [4], db.errors.VocabularyError, "outside the 4 classes"),
    ],
)
def test_what_does_not_fit_is_refused(queries, keys, targets, error, message):
    with db.Graph() as graph:
        q, k = [F.constant(graph, 1.0, shape) for shape in (queries, keys)]
        with pytest.raises(error, match=message):
            F.pointer_loss(q, k, targets)
