import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import DtypeError, ShapeError
from tests.torch_parity import assert_equals_torch, import_torch

LENGTHS = ([2, 0, 1], [], [0], [1, 1, 1, 4], [0, 9, 0])


@pytest.mark.parametrize("width", [1, 5, 40])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_equals_torchs_bags_of_rows(mode, width):
    """PyTorch's own reduction has NaN for the mean of no rows; its bags have 0, as we do."""
    torch = import_torch()
    ours = {"sum": F.segment_sum, "mean": F.segment_mean}[mode]
    for lengths in LENGTHS:

        def reference(x, lengths=lengths):
            offsets = torch.tensor([0, *np.cumsum(lengths)[:-1]], dtype=torch.long)[: len(lengths)]
            return torch.nn.functional.embedding_bag(torch.arange(len(x)), x, offsets, mode=mode)

        def build(x, lengths=lengths):
            return ours(x, lengths)

        if sum(lengths):
            assert_equals_torch(build, reference, [(sum(lengths), width)])


@pytest.mark.parametrize("reduce", [F.segment_sum, F.segment_mean])
def test_all_sentences_are_one_batch(reduce):
    with db.Graph() as graph:
        found = [reduce(F.input(graph, np.ones((sum(lengths), 3))), lengths) for lengths in LENGTHS]
        shapes = [y.value.shape for y in found]
        assert graph.statistics.batches == 2  # the inputs, and these
    assert shapes == [(len(lengths), 3) for lengths in LENGTHS]


@pytest.mark.parametrize("lengths", [[2, 2], [3, 3], [6, -1], []])
@pytest.mark.parametrize("reduce", [F.segment_sum, F.segment_mean])
def test_lengths_that_do_not_fit_are_refused(reduce, lengths):
    with db.Graph() as graph, pytest.raises(ShapeError, match=f"{len(lengths)} segments of"):
        reduce(F.input(graph, np.ones((5, 2))), lengths)


def test_a_vector_and_an_array_are_refused():
    with db.Graph() as graph, pytest.raises(ShapeError, match=r"a matrix \(M, D\)"):
        F.segment_sum(F.input(graph, np.ones(5)), [5])
    with pytest.raises(DtypeError, match="a node expected"):
        F.segment_mean(np.ones((5, 2)), [5])
