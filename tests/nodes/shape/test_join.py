import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import EmptyBatchError
from dynbatch.kernels import move
from tests.torch_parity import assert_equals_torch, import_torch

VECTORS = [[(3,), (3,)], [(3,), (3,)], [(3,), (3,)]]


def test_concat_equals_torch():
    torch = import_torch()
    pairs = [[(length, 4), (length, 2)] for length in (3, 0, 1, 9)]
    assert_equals_torch(lambda a, b: F.concat([a, b]), lambda a, b: torch.cat([a, b], 1), pairs)
    pairs = [[(3, 4), (1, 4)], [(0, 4), (2, 4)], [(1, 4), (5, 4)]]
    assert_equals_torch(lambda a, b: F.concat([a, b], 0), lambda a, b: torch.cat([a, b], 0), pairs)
    assert_equals_torch(lambda a, b: F.concat([a, b], 0), lambda a, b: torch.cat([a, b]), VECTORS)


def test_concat_of_all_widths_and_lengths_is_one_batch():
    with db.Graph() as graph:
        for length, width in [(3, 2), (0, 5), (7, 1)]:
            x = F.input(graph, np.ones((length, width)))
            F.concat([x] * (length + 1))
        graph.forward()
        assert [len(step.nodes) for step in graph.plans[0].steps] == [3, 3]  # inputs, concats


@pytest.mark.parametrize("lengths", [[[3, 1], [5]], [[3], [1, 0, 4], [2] * 9, [7, 7]]])
def test_a_multi_length_concat_is_one_launch(device, lengths):
    with db.Graph(device, grad=False) as graph:
        for each in lengths:
            F.concat([F.input(graph, np.ones((length, 2))) for length in each], dim=0)
        graph.forward()
        assert graph.statistics.launches == 2  # of the inputs, and of the concat


@pytest.mark.parametrize("join", [F.concat, F.stack])
def test_joining_nothing_is_refused(join):
    with pytest.raises(EmptyBatchError, match="at least one input"):
        join([])


@pytest.mark.parametrize(("shift", "rectangles"), [(0, 2), (1, 3)])
def test_inputs_that_are_neighbours_are_one_rectangle(shift, rectangles, monkeypatch):
    found = []
    run = move.run

    def counted(source, target, moves, add=False):
        found.append(len(move.merge(moves)))
        return run(source, target, moves, add)

    monkeypatch.setattr(move, "run", counted)
    values = [np.full((2, 3), k) for k in range(3)]
    with db.Graph(dtype=np.float64) as graph:
        xs = [F.input(graph, value) for value in values]
        joined = [F.concat([xs[k], xs[(k + shift) % 3]]) for k in range(3)]
        for k, node in enumerate(joined):
            assert np.array_equal(node.value, np.hstack([values[k], values[(k + shift) % 3]]))
    assert found == [rectangles]
