import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ShapeError
from dynbatch.testing import check_batching, check_gradient
from tests.torch_parity import assert_equals_torch, import_torch

SENTENCES = [(length, 4) for length in (5, 0, 1, 9, 2, 3)]
LONG = [(length, 4) for length in (5, 9, 3)]


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, x: F.windows(x, 3),
        lambda graph, x: F.windows(x, 3, padding=2),
        lambda graph, x: F.windows(x, 3, stride=2, padding=1),
        lambda graph, x: F.windows(x, 1, stride=3),
        lambda graph, x: F.max_pool(x, 2),
        lambda graph, x: F.max_pool(x, 3, stride=1),
        lambda graph, x: F.mean_pool(x, 3, stride=2),
        lambda graph, x: F.mean_pool(x, 1, stride=2),
    ],
)
def test_batches_and_differentiates(build):
    check_batching(build, shapes=[[shape] for shape in SENTENCES])
    for shape in SENTENCES[:3]:
        check_gradient(build, shapes=[shape])


@pytest.mark.parametrize("how", [(3, 1, 0), (3, 1, 2), (2, 2, 1), (3, 4, 1)])
def test_a_linear_map_of_windows_is_torchs_convolution(how):
    size, stride, padding = how
    torch = import_torch()

    def convolve(x, weight, bias):
        kernel = weight.reshape(6, size, 4).transpose(1, 2)  # (O, D, size)
        return torch.conv1d(x.T[None], kernel, bias, stride=stride, padding=padding)[0].T

    assert_equals_torch(
        lambda x, weight, bias: F.linear(F.windows(x, size, stride, padding), weight, bias),
        convolve,
        LONG,
        parameters=[(6, size * 4), (6,)],
    )


@pytest.mark.parametrize(("size", "stride"), [(2, None), (3, 1), (1, 2), (3, 2)])
def test_pooling_equals_torch(size, stride):
    torch = import_torch()
    functional = torch.nn.functional
    assert_equals_torch(
        lambda x: F.max_pool(x, size, stride),
        lambda x: functional.max_pool1d(x.T[None], size, stride)[0].T,
        LONG,
    )
    assert_equals_torch(
        lambda x: F.mean_pool(x, size, stride),
        lambda x: functional.avg_pool1d(x.T[None], size, stride)[0].T,
        LONG,
    )


def test_the_gradient_of_a_tie_goes_to_the_first_of_each_window_as_in_torch():
    torch = import_torch()
    assert_equals_torch(
        lambda x: F.max_pool(x, 3, 1),
        lambda x: torch.nn.functional.max_pool1d(x.T[None], 3, 1)[0].T,
        [[np.array([[1.0, 2], [1, 2], [1, 1], [0, 2], [1, 2]])], [np.ones((4, 2))]],
    )


def test_windows_hold_neighbouring_tokens_and_zeros_beyond_the_sentence():
    with db.Graph() as graph:
        x = F.input(graph, [[1.0], [2.0], [3.0]])
        F.input(graph, [[9.0]])  # a neighbour in the same block, which no window may see
        assert F.windows(x, 2).value.tolist() == [[1, 2], [2, 3]]
        assert F.windows(x, 2, padding=1).value.tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]


def test_a_sentence_shorter_than_the_window_has_no_row():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 4)))
        assert F.windows(x, 3).value.shape == (0, 12)
        assert F.max_pool(x, 3).value.shape == (0, 4)
        assert F.mean_pool(x, 3).value.shape == (0, 4)
        assert F.windows(x[:0], 3, padding=2).value.tolist() == [[0] * 12] * 2


@pytest.mark.parametrize(
    "build",
    [
        lambda x: F.windows(x, 0),
        lambda x: F.windows(x, 2, stride=0),
        lambda x: F.windows(x, 2, padding=2),
        lambda x: F.windows(x, 2, padding=-1),
        lambda x: F.max_pool(x, 2, stride=0),
        lambda x: F.mean_pool(x, -1),
    ],
)
def test_windows_that_cannot_slide_are_refused(build):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 2)))
        with pytest.raises(ShapeError, match="size >= 1, stride >= 1, 0 <= padding < size"):
            build(x)
        with pytest.raises(ShapeError, match="x has shape"):
            F.windows(x[0], 2)
