import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError, VocabularyError
from dynbatch.nodes.losses.targets import check_reduction, class_targets


def test_weights_make_the_sum_the_reduction():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 4)))
        ids, weights, _ = class_targets("loss", x, [3, -100, 0], -100, "mean")
        assert ids.tolist() == [3, 0, 0] and weights.tolist() == [0.5, 0, 0.5]
        assert weights.dtype == graph.dtype
        assert class_targets("loss", x, [3, -100, 0], -100, "sum")[1].tolist() == [1, 0, 1]
        assert class_targets("loss", x, [-100] * 3, -100, "mean")[1].tolist() == [0, 0, 0]
        assert class_targets("loss", x[0], 2, -100, "mean")[0].tolist() == [2]
        assert class_targets("loss", x[:0], [], -100, "mean")[0].shape == (0,)


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([0, 1], ShapeError, "2 targets for loss"),
        ([0, 1, 4], VocabularyError, "target 4 at position 2 of 3"),
        ([0, -1, 9], VocabularyError, "target -1 at position 1 of 3"),
        ([[0, 1, 2]], ShapeError, "one-dimensional"),
        ([0.0, 1.0, 2.0], ShapeError, "integers"),
    ],
)
def test_wrong_targets_are_named_with_their_position(targets, error, message):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((3, 4)))
        with pytest.raises(error, match=message) as caught:
            class_targets("loss", x, targets, -100, "mean")
        assert "test_targets.py" in str(caught.value)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="one of mean, sum"):
        check_reduction("loss", "none", ("mean", "sum"))
