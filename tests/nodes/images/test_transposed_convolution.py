"""Transposed convolutions of images of many sizes: PyTorch's, image by image."""

import itertools

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ShapeError
from dynbatch.kernels import convolution as kernels
from dynbatch.testing import check_batching
from tests.torch_parity import assert_equals_torch, import_torch

SHAPES = [(1 + k % 5, 1 + (3 * k) % 7, 4) for k in range(20)]
# Stride, padding, output_padding, groups, dilation. A stride may be wider than a window.
HOW = [
    (1, 0, 0, 1, 1),
    (2, 0, 1, 1, 1),
    (2, 1, 1, 2, 2),
    ((3, 1), (0, 1), (2, 0), 1, (1, 2)),
    ((4, 2), 0, (0, 2), 4, (1, 3)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)])
def test_it_equals_torch_image_by_image(dtype, how, kernel):
    torch = import_torch()

    def reference(x, w, b):
        y = torch.conv_transpose2d(x.permute(2, 0, 1)[None], w, b, *how)
        return y[0].permute(1, 2, 0) * 0.1

    assert_equals_torch(
        lambda x, w, b: F.conv_transpose2d(x, w, b, *how) * 0.1,
        reference,
        SHAPES,
        parameters=[(4, 8 // how[3], *kernel), (8,)],
        dtype=dtype,
    )


@pytest.mark.parametrize("how", HOW)
def test_it_is_the_gradient_of_a_convolution(how):
    """⟨y, conv(z)⟩ = ⟨conv_transpose(y), z⟩ for images z of the size of the result."""
    stride, padding, _, groups, dilation = how
    generator = np.random.default_rng(0)
    weight = db.Parameter(generator.normal(size=(4, 8 // groups, 3, 2)))
    with db.Graph(dtype="float64") as graph:
        for shape in SHAPES[3:8]:
            y = F.input(graph, generator.normal(size=shape))
            back = F.conv_transpose2d(y, weight, None, *how)
            z = F.input(graph, generator.normal(size=back.shape))
            there = F.conv2d(z, weight, None, stride, padding, dilation, groups)
            # Where output_padding is as large as the stride, a convolution has more windows.
            rows, columns = shape[:2]
            found = (there.value[:rows, :columns] * y.value).sum()
            assert found == pytest.approx((back.value * z.value).sum())


def test_launches_are_as_many_for_two_images_as_for_twenty():
    weight = db.Parameter(np.ones((4, 2, 3, 3), np.float32))

    def counts(count):
        with db.Graph() as graph:
            xs = [F.input(graph, np.ones(shape, np.float32)) for shape in SHAPES[:count]]
            ys = [F.conv_transpose2d(x, weight, stride=2, groups=2) for x in xs]
            graph.backward(F.sum([F.sum(y) for y in ys]))
            return graph.statistics.launches, graph.statistics.batches

    assert counts(2) == counts(20)


@pytest.mark.parametrize("how", HOW)
def test_windows_in_chunks_give_what_one_chunk_gives(how, monkeypatch):
    def results():
        generator = np.random.default_rng(0)
        weight = db.Parameter(generator.normal(size=(4, 8 // how[3], 3, 3)))
        bias = db.Parameter(np.ones(8))
        with db.Graph(dtype="float64") as graph:
            xs = [F.input(graph, generator.normal(size=s)).keep() for s in SHAPES[:8]]
            ys = [F.conv_transpose2d(x, weight, bias, *how).keep() for x in xs]
            graph.backward(F.sum([F.sum(y * y) for y in ys]))
            return [*[y.value for y in ys], *[x.gradient for x in xs], weight.grad, bias.grad]

    whole = results()
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernels, "LEAST_ROWS", 7)
    for one, other in zip(whole, results(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-9)


def test_images_are_batched_as_one_by_one_and_a_frozen_weight_stays():
    weight, bias = db.Parameter(np.ones((4, 3, 2, 2))), db.Parameter(np.ones(3))
    weight.frozen = True
    check_batching(
        lambda graph, x: F.conv_transpose2d(x, weight, bias, stride=2),
        shapes=[[shape] for shape in SHAPES[:5]],
        parameters=[bias],
    )
    assert weight.grad is None or not np.any(weight.grad)


def test_operations_are_those_of_the_convolution_whose_gradient_it_is():
    weight = db.Parameter(np.ones((4, 3, 2, 5), np.float32))
    with db.Graph() as graph:
        y = F.conv_transpose2d(F.input(graph, np.ones((6, 7, 4), np.float32)).keep(), weight)
        graph.backward(F.sum(y))
        counts = graph.flops().by_type["TransposedConvolution"]
    assert counts.forward.products == 2 * weight.size * 6 * 7
    assert counts.backward.products == 2 * counts.forward.products


def test_what_would_be_empty_is_refused():
    weight = db.Parameter(np.ones((4, 3, 2, 2), np.float32))
    with db.Graph() as graph:
        x = F.input(graph, np.ones((1, 3, 4), np.float32))
        with pytest.raises(ShapeError, match="the result would be empty: 0 × 2"):
            F.conv_transpose2d(x, weight, padding=1)
        assert F.conv_transpose2d(x, weight, padding=(0, 1)).shape == (2, 2, 3)
        with pytest.raises(ShapeError, match="at least one pixel"):
            F.conv_transpose2d(F.input(graph, np.ones((0, 3, 4), np.float32)), weight, stride=1)


def test_wrong_arguments_are_refused():
    weight = db.Parameter(np.ones((4, 3, 2, 2), np.float32), "w")
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 5, 4), np.float32))
        with pytest.raises(ShapeError, match=r"differ in I \(5 != 4\)"):
            F.conv_transpose2d(F.input(graph, np.ones((4, 5, 5), np.float32)), weight)
        with pytest.raises(ShapeError, match=r"x has shape \(5, 4\)[\s\S]*x \(H, W, I\)"):
            F.conv_transpose2d(x[0], weight)
        with pytest.raises(ShapeError, match=r"a weight is \(I, O / groups, h, w\)"):
            F.conv_transpose2d(x, db.Parameter(np.ones((4, 3, 2), np.float32)))
        with pytest.raises(ShapeError, match="make the bias of 6 elements"):
            F.conv_transpose2d(x, weight, db.Parameter(np.ones(3, np.float32)), groups=2)
        with pytest.raises(ShapeError, match="4 inputs in 3 groups"):
            F.conv_transpose2d(x, weight, groups=3)
        with pytest.raises(ArgumentError, match="stride is 0"):
            F.conv_transpose2d(x, weight, stride=0)
        with pytest.raises(ArgumentError, match=r"output_padding \(0, 2\) with stride \(3, 2\)"):
            F.conv_transpose2d(x, weight, stride=(3, 2), output_padding=(0, 2))
        with pytest.raises(ArgumentError, match="output_padding is -1"):
            F.conv_transpose2d(x, weight, output_padding=-1)
        with pytest.raises(ArgumentError, match=r"groups is 1\.5"):
            F.conv_transpose2d(x, weight, groups=1.5)
        with pytest.raises(DtypeError, match="a parameter expected"):
            F.conv_transpose2d(x, np.ones((4, 3, 2, 2)))


def test_what_differs_stays_apart():
    weight = db.Parameter(np.ones((4, 2, 3, 3), np.float32))
    with db.Graph() as graph:
        x = F.input(graph, np.ones((6, 5, 4), np.float32))
        ways = itertools.product((2, 3), (0, 1), (0, 1), (1, 2), (1, 2))
        ys = [F.conv_transpose2d(x, weight, None, *how) for how in ways]
        assert len({y.sig for y in ys}) == len(ys) == 32
        assert F.conv_transpose2d(x[1:], weight, stride=2).sig == ys[0].sig
