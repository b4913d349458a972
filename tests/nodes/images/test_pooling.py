"""Pools of images of many sizes: PyTorch's, image by image."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, ShapeError
from dynbatch.kernels.images import window_patches
from dynbatch.nodes.inner_product import seed
from dynbatch.testing import check_batching
from dynbatch.testing.probe import backward, gradient_of
from tests.torch_parity import assert_equals_torch, import_torch

SHAPES = [(4 + k % 6, 4 + (5 * k) % 9, 3) for k in range(20)]
HOW = [(2, None, 0), (3, 1, 1), (3, 2, 1), ((2, 4), (3, 1), (1, 2)), (1, 2, 0)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pools_equal_torch_image_by_image(name, how, dtype):
    pool = getattr(import_torch().nn.functional, name)
    assert_equals_torch(
        lambda x: getattr(F, name)(x, *how),
        lambda x: pool(x.permute(2, 0, 1)[None], *how)[0].permute(1, 2, 0),
        SHAPES,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", [(2, 1, 0, 3), ((2, 3), (2, 1), 1, (3, 1)), (2, None, (1, 0), 2)])
def test_dilated_maxima_equal_torch_image_by_image(how, dtype):
    pool = import_torch().nn.functional.max_pool2d
    assert_equals_torch(
        lambda x: F.max_pool2d(x, *how),
        lambda x: pool(x.permute(2, 0, 1)[None], *how)[0].permute(1, 2, 0),
        SHAPES,
        dtype=dtype,
    )


def test_a_window_in_the_padding_alone_is_refused():
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 5, 3), np.float32))
        with pytest.raises(ShapeError, match="holds no pixel"):
            F.max_pool2d(x, 2, 1, 1, 3)
        assert F.max_pool2d(x, 2, 1, 1, (2, 3)).shape == (2, 4, 3)
        assert F.max_pool2d(x, (1, 2), 1, 0, 3).shape == (2, 2, 3)
        with pytest.raises(ShapeError, match="H, W = 4 × 4"):
            F.max_pool2d(x, 2, dilation=3)
        with pytest.raises(ArgumentError, match="dilation is 0"):
            F.max_pool2d(x, 2, dilation=0)


def test_no_other_image_has_a_window_in_the_padding_alone():
    """Where `max_pool2d` takes an image, each window holds a pixel."""
    sides, taken = range(1, 12), 0
    for kernel, stride, apart in [
        (k, s, d) for k in range(1, 6) for s in (1, 3) for d in (1, 2, 5)
    ]:
        for around in range(kernel // 2 + 1):
            patches = []
            with db.Graph() as graph:
                for side in sides:
                    x = F.input(graph, np.full((side, 1, 1), -np.inf, np.float32))
                    how = (kernel, 1), (stride, 1), (around, 0), (apart, 1)
                    try:
                        y = F.max_pool2d(x, *how)
                    except ShapeError:
                        continue
                    patches.append(window_patches(np.array([(side, 1)]), *how))
                    assert y.rows == patches[-1].offsets[-1]
            for each in patches:
                held = np.array(list(each.rows(slice(0, int(each.offsets[-1]))))) >= 0
                assert held.any(0).all()
                taken += 1
    assert taken > 300


@pytest.mark.parametrize("dilation", [1, (1, 2)])
def test_of_equal_maxima_the_first_has_the_gradient_as_in_torch(dilation):
    torch = import_torch()
    generator = np.random.default_rng(0)
    ties = [generator.integers(-1, 2, shape).astype(float) for shape in SHAPES]
    with db.Graph(dtype="float64") as graph:
        xs = [F.input(graph, x).keep() for x in ties]
        ys = [F.max_pool2d(x, 3, 1, 1, dilation) for x in xs]
        graph.backward(F.sum([F.sum(y) for y in ys]))
        gradients = [x.gradient for x in xs]
    for x, gradient in zip(ties, gradients, strict=True):
        tensor = torch.tensor(x, requires_grad=True)
        y = torch.nn.functional.max_pool2d(tensor.permute(2, 0, 1)[None], 3, 1, 1, dilation)
        y.backward(torch.ones_like(y))
        assert np.array_equal(gradient, tensor.grad.numpy())


def test_the_first_nan_of_a_window_has_its_gradient():
    """PyTorch gives it to the last one; to a NaN in either."""
    image = np.array([[1, np.nan, -2, 5], [0.5, 0.25, np.nan, np.nan]])
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, image[..., None]).keep()
        y = F.max_pool2d(x, (2, 2), 1)
        backward(graph, seed([y], [np.array([1.0, 10.0, 100.0])], False))
        found = gradient_of(x)[..., 0]
    assert found.tolist() == [[0, 11, 0, 0], [0, 0, 100, 0]]


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_pools_batch_whatever_the_sizes(pool):
    check_batching(
        lambda graph, x: pool(x, 3, 2, 1), shapes=[[shape] for shape in [*SHAPES[:4], (1, 1, 3)]]
    )


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_what_no_window_fits_is_refused(pool):
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 5, 3), np.float32))
        with pytest.raises(ShapeError, match="H, W = 3 × 3"):
            pool(x, 3)
        with pytest.raises(ShapeError, match="at least one pixel"):
            pool(F.input(graph, np.ones((0, 5, 3), np.float32)), 2, padding=1)
        with pytest.raises(ShapeError, match=r"x has shape \(5, 3\)[\s\S]*x \(H, W, C\) ->"):
            pool(x[0], 2)
        with pytest.raises(ArgumentError, match="at most half of kernel_size"):
            pool(x, 3, padding=2)
        with pytest.raises(ArgumentError, match="kernel_size is 0"):
            pool(x, 0)
        with pytest.raises(ArgumentError, match=r"stride is \(1, 0\)"):
            pool(x, 2, (1, 0))
