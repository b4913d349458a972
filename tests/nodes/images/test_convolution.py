"""Convolutions of images of many sizes: PyTorch's, image by image, in launches that do not grow."""

import itertools

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, DtypeError, ShapeError
from dynbatch.kernels import convolution as kernels
from dynbatch.kernels.c.images import patch_tables
from dynbatch.kernels.images import window_patches
from dynbatch.nodes.batch import Batch
from dynbatch.testing import check_batching
from tests.torch_parity import assert_equals_torch, import_torch

# Heights and widths from 5 on, so that every window below fits.
SIZES = [(5 + k % 7, 5 + (3 * k) % 11) for k in range(20)]
HOW = [(1, 0, 1), (1, 1, 1), (2, 1, 1), ((3, 2), (2, 0), (1, 2)), ((1, 4), (3, 5), (2, 1))]


def shapes_of(count, channels=3):
    return [(*size, channels) for size in SIZES[:count]]


def test_the_sizes_differ():
    assert len(set(SIZES)) == 20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 3)])
def test_conv2d_equals_torch_image_by_image(dtype, how, kernel):
    torch = import_torch()
    stride, padding, dilation = how

    def reference(x, w, b):
        y = torch.conv2d(x.permute(2, 0, 1)[None], w, b, stride, padding, dilation)
        return y[0].permute(1, 2, 0)

    assert_equals_torch(
        lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation) * 0.1,
        lambda x, w, b: reference(x, w, b) * 0.1,
        shapes_of(20),
        parameters=[(4, 3, *kernel), (4,)],
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("groups", "outputs", "kernel"), [(2, 6, (3, 2)), (4, 8, 3), (4, 4, 1)])
def test_groups_of_channels_equal_torchs(dtype, groups, outputs, kernel):
    torch = import_torch()
    how = (2, 1), (1, 2), (1, 2), groups
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)

    def reference(x, w, b):
        return torch.conv2d(x.permute(2, 0, 1)[None], w, b, *how)[0].permute(1, 2, 0) * 0.1

    assert_equals_torch(
        lambda x, w, b: F.conv2d(x, w, b, *how) * 0.1,
        reference,
        shapes_of(20, 4),
        parameters=[(outputs, 4 // groups, *window), (outputs,)],
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_of_features_equal_torchs(dtype):
    torch = import_torch()
    for groups, stride in ((2, 1), (4, 2)):
        assert_equals_torch(
            lambda x, w, b, how=(stride, 1, 1, groups): F.conv1d(x, w, b, *how) * 0.1,
            lambda x, w, b, how=(stride, 1, 1, groups): (
                torch.conv1d(x.T[None], w, b, *how)[0].T * 0.1
            ),
            [(7 + n, 4) for n in range(20)],
            parameters=[(8, 4 // groups, 3), (8,)],
            dtype=dtype,
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 6)])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_padding_by_name_equals_torchs(dtype, kernel, padding):
    torch = import_torch()
    sizes = [shape for shape in shapes_of(20) if padding == "same" or shape[1] > 10]
    assert len(sizes) > 5
    how = 1, padding, (1, 2)
    assert_equals_torch(
        lambda x, w, b: F.conv2d(x, w, b, *how) * 0.1,
        lambda x, w, b: (
            torch.conv2d(x.permute(2, 0, 1)[None], w, b, *how)[0].permute(1, 2, 0) * 0.1
        ),
        sizes,
        parameters=[(4, 3, *kernel), (4,)],
        dtype=dtype,
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_same_padding_keeps_the_length_of_any_sentence():
    torch = import_torch()
    for kernel in (1, 4, 5):
        assert_equals_torch(
            lambda x, w: F.conv1d(x, w, padding="same", dilation=3),
            lambda x, w: torch.conv1d(x.T[None], w, None, 1, "same", 3)[0].T,
            [(n, 2) for n in range(1, 9)],
            parameters=[(2, 2, kernel)],
            dtype="float64",
        )


@pytest.mark.parametrize("groups", [1, 4])
def test_a_causal_convolution_sees_no_later_token_and_keeps_any_length(groups):
    torch = import_torch()
    for kernel in (1, 2, 4):
        assert_equals_torch(
            lambda x, w, b: F.conv1d(x, w, b, padding="causal", dilation=3, groups=groups),
            lambda x, w, b, before=3 * (kernel - 1): (
                torch.conv1d(
                    torch.nn.functional.pad(x.T[None], (before, 0)), w, b, 1, 0, 3, groups
                )[0].T
            ),
            [(n, 4) for n in range(1, 9)],
            parameters=[(4, 4 // groups, kernel), (4,)],
            dtype="float64",
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conv1d_equals_torch_sentence_by_sentence(dtype):
    torch = import_torch()
    generator = np.random.default_rng(0)
    for _ in range(5):
        kernel, stride, dilation = generator.integers(1, 4, 3).tolist()
        padding = int(generator.integers(0, 5))
        how = stride, padding, dilation
        assert_equals_torch(
            lambda x, w, b, how=how: F.conv1d(x, w, b, *how) * 0.1,
            lambda x, w, b, how=how: torch.conv1d(x.T[None], w, b, *how)[0].T * 0.1,
            [(7 + n, 4) for n in range(20)],
            parameters=[(5, 4, kernel), (5,)],
            dtype=dtype,
        )


def test_networks_of_images_equal_torch_at_random_strides_and_paddings():
    torch = import_torch()
    functional, generator = torch.nn.functional, np.random.default_rng(1)
    for _ in range(3):
        stride, dilation = generator.integers(1, 3, 2).tolist()
        padding = tuple(generator.integers(1, 4, 2).tolist())

        def ours(x, w, v, how=(stride, padding, dilation)):
            return F.mean(F.conv2d(F.max_pool2d(F.conv2d(x, w, None, *how), 2), v), dim=(0, 1))

        def theirs(x, w, v, how=(stride, padding, dilation)):
            y = functional.conv2d(x.permute(2, 0, 1)[None], w, None, *how)
            return functional.conv2d(functional.max_pool2d(y, 2), v).mean((0, 2, 3))

        sizes = [(12 + 3 * h, 12 + w, 2) for h, w in generator.integers(0, 8, (20, 2)).tolist()]
        assert_equals_torch(
            ours, theirs, sizes, parameters=[(3, 2, 3, 3), (2, 3, 2, 1)], dtype="float64"
        )


def test_launches_are_as_many_for_two_images_as_for_twenty():
    weight = db.Parameter(np.ones((4, 3, 3, 3), np.float32))

    depthwise = db.Parameter(np.ones((4, 1, 2, 2), np.float32))

    def counts(count):
        with db.Graph() as graph:
            xs = [F.input(graph, np.ones(shape, np.float32)) for shape in shapes_of(count)]
            convolved = [F.conv2d(F.conv2d(x, weight), depthwise, groups=4) for x in xs]
            pooled = [F.avg_pool2d(F.max_pool2d(y, 2), 1) for y in convolved]
            graph.backward(F.sum([F.sum(y) for y in pooled]))
            return graph.statistics.launches, graph.statistics.batches

    assert counts(2) == counts(20)


@pytest.mark.parametrize("how", [*HOW, (1, 1, 1, 2)])
def test_windows_in_chunks_give_what_one_chunk_gives(how, monkeypatch):
    inputs = 1 if len(how) > 3 else 2

    def results():
        weight = db.Parameter(np.arange(18.0 * inputs).reshape(2, inputs, 3, 3))
        bias = db.Parameter(np.ones(2))
        generator = np.random.default_rng(0)
        with db.Graph(dtype="float64") as graph:
            xs = [F.input(graph, generator.normal(size=s)).keep() for s in shapes_of(6, 2)]
            ys = [F.conv2d(x, weight, bias, *how).keep() for x in xs]
            graph.backward(F.sum([F.sum(y * y) for y in ys]))
            return [*[y.value for y in ys], *[x.gradient for x in xs], weight.grad, bias.grad]

    whole = results()
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernels, "LEAST_ROWS", 7)
    for one, other in zip(whole, results(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-9)


def test_chunks_bound_the_memory_of_windows():
    assert kernels.chunk_rows(100, 9 * 64, 4) == 100
    assert kernels.chunk_rows(10**6, 10**9, 4) <= kernels.LEAST_ROWS
    weight, sides = np.empty((64, 64, 3, 3), np.float32), np.array([(1000, 1000)] * 3)
    patches = window_patches(sides, (3, 3), (1, 1), (1, 1))
    for elements in (
        kernels.workspace(weight, patches),
        kernels.workspace_backward(weight, patches.reversed()),
    ):
        assert 0.9 * kernels.CHUNK_BYTES < 4 * (elements - weight.size) <= kernels.CHUNK_BYTES
    depthwise = np.empty((64, 1, 3, 3), np.float32)
    both = kernels.workspace(depthwise, patches, 64) - depthwise.size, elements - weight.size
    assert both[0] == both[1]
    pixels = window_patches(sides, (1, 1), (1, 1), (0, 0))
    weight = np.empty((8, 64, 1, 1), np.float32)
    assert kernels.workspace(weight, pixels) == weight.size
    assert kernels.workspace_backward(weight, pixels.reversed()) == weight.size


def test_the_table_of_images_is_counted():
    with db.Graph() as graph:
        images = [F.input(graph, np.ones((height, 5, 2))) for height in (4, 7, 3)]
        batch = Batch([F.avg_pool2d(image, 2) for image in images], np.dtype("float32"))
    node_type = type(batch.first)
    (images_table, _) = patch_tables(node_type.patches(batch))
    assert node_type.index_bytes(batch) == 8 * 4 + images_table.nbytes  # and the rows' offsets


def test_two_groups_are_two_convolutions_side_by_side():
    generator = np.random.default_rng(0)
    value = generator.normal(size=(6, 2, 3, 3))
    whole, low, high = [db.Parameter(w.copy()) for w in (value, value[:3], value[3:])]
    with db.Graph(dtype="float64") as graph:
        x = generator.normal(size=(5, 7, 4))
        left, right = [F.input(graph, x[:, :, k : k + 2]) for k in (0, 2)]
        expected = np.dstack([F.conv2d(left, low).value, F.conv2d(right, high).value])
        y = F.conv2d(F.input(graph, x), whole, groups=2)
        np.testing.assert_allclose(y.value, expected, atol=1e-12)


def test_images_are_batched_as_one_by_one_and_a_frozen_weight_stays():
    weight, bias = db.Parameter(np.ones((2, 3, 2, 2))), db.Parameter(np.ones(2))
    weight.frozen = True
    check_batching(
        lambda graph, x: F.conv2d(x, weight, bias, padding=1),
        shapes=[[shape] for shape in shapes_of(5)],
        parameters=[bias],
    )
    assert weight.grad is None or not np.any(weight.grad)


def test_padding_alone_makes_rows_of_a_sentence_without_tokens():
    weight, bias = db.Parameter(np.ones((2, 3, 4))), db.Parameter(np.array([5.0, 7.0]))
    with db.Graph(dtype="float64") as graph:
        x = F.input(graph, np.zeros((0, 3)))
        y = F.conv1d(x, weight, bias, padding=2)
        assert y.value.tolist() == [[5, 7]]
        graph.backward(F.sum(y))
    assert not weight.grad.any()
    assert bias.grad.tolist() == [1, 1]


def test_an_image_smaller_than_the_window_is_refused():
    square = db.Parameter(np.ones((2, 3, 3, 3), np.float32), "square")
    line = db.Parameter(np.ones((2, 3, 4), np.float32), "line")
    with db.Graph() as graph:
        x = F.input(graph, np.ones((2, 9, 3), np.float32))
        with pytest.raises(ShapeError, match="2 × 9 is smaller than the window") as raised:
            F.conv2d(x, square)
        assert "H, W = 3 × 3" in str(raised.value)
        assert F.conv2d(x, square, padding=(1, 0)).shape == (2, 7, 2)
        with pytest.raises(ShapeError, match="H, W = 5 × 5"):
            F.conv2d(x, square, dilation=2)
        with pytest.raises(ShapeError, match="at least T = 4"):
            F.conv1d(F.input(graph, np.ones((3, 3), np.float32)), line)
        with pytest.raises(ShapeError, match="at least H, W = 1 × 1"):
            F.conv2d(
                F.input(graph, np.ones((0, 4, 3), np.float32)),
                db.Parameter(np.ones((1, 3, 1, 1), np.float32)),
            )


def test_wrong_arguments_are_refused():
    weight = db.Parameter(np.ones((2, 3, 3, 3), np.float32), "w")
    with db.Graph() as graph:
        x = F.input(graph, np.ones((5, 5, 3), np.float32))
        with pytest.raises(ShapeError, match=r"x \(3, 5, 5\) differ in I \(3 != 5\)"):
            F.conv2d(F.input(graph, np.ones((3, 5, 5), np.float32)), weight)
        with pytest.raises(ShapeError, match=r"x has shape \(5, 3\)[\s\S]*x \(H, W, groups · I\)"):
            F.conv2d(x[0], weight)
        with pytest.raises(ShapeError, match=r"a weight is \(O, I / groups, k\)"):
            F.conv1d(x[0], weight)
        with pytest.raises(ShapeError, match="make the bias of 2 elements"):
            F.conv2d(x, weight, db.Parameter(np.ones(3, np.float32)))
        with pytest.raises(ArgumentError, match="stride is 0"):
            F.conv2d(x, weight, stride=0)
        with pytest.raises(ArgumentError, match="padding is 'full'") as raised:
            F.conv2d(x, weight, padding="full")
        assert "numbers, 'same' or 'valid'" in str(raised.value)
        with pytest.raises(ArgumentError, match="padding is 'causal'"):
            F.conv2d(x, weight, padding="causal")
        with pytest.raises(ArgumentError, match=r"padding='same' with stride \(1, 2\)"):
            F.conv2d(x, weight, stride=(1, 2), padding="same")
        with pytest.raises(ArgumentError, match=r"dilation is \(1, 2, 3\)"):
            F.conv2d(x, weight, dilation=(1, 2, 3))
        with pytest.raises(DtypeError, match="a parameter expected"):
            F.conv2d(x, np.ones((2, 3, 3, 3)))
        with pytest.raises(ArgumentError, match="groups is 0"):
            F.conv2d(x, weight, groups=0)
        with pytest.raises(ShapeError, match=r"x \(5, 5, 3\): 3 is no multiple of groups = 2"):
            F.conv2d(x, weight, groups=2)
        with pytest.raises(ShapeError, match="2 outputs in 3 groups") as raised:
            F.conv2d(x, db.Parameter(np.ones((2, 1, 3, 3), np.float32)), groups=3)
        assert "groups=1" in str(raised.value)


def test_windows_of_different_strides_paddings_or_weights_stay_apart():
    weights = [db.Parameter(np.ones((2, 3, 3, 3), np.float32)) for _ in range(2)]
    with db.Graph() as graph:
        x = F.input(graph, np.ones((6, 5, 3), np.float32))
        how = itertools.product(weights, (1, 2), (0, 1), (1, 2))
        ys = [F.conv2d(x, w, None, *each) for w, *each in how]
        assert len({y.sig for y in ys}) == len(ys) == 16
        assert F.conv2d(x[1:], weights[0]).sig == ys[0].sig
        assert F.conv2d(x, weights[0], padding="same").sig == ys[2].sig


def test_blocks_of_sentences_and_of_images_give_the_same():
    line = db.Parameter(np.random.default_rng(0).normal(size=(3, 4, 3)))
    square = db.Parameter(np.random.default_rng(1).normal(size=(3, 4, 3, 2)))

    def of_sentence(graph, x):
        return F.max(F.relu(F.conv1d(x, line, padding=1)), dim=0)

    def of_image(graph, x):
        return F.mean(F.relu(F.conv2d(x, square, padding=1)), dim=(0, 1))

    generator = np.random.default_rng(2)
    for function, shapes in ((of_sentence, [(5, 4), (3, 4), (5, 4)]), (of_image, shapes_of(3, 4))):
        arrays, found = [generator.normal(size=shape) for shape in shapes], []
        for build in (function, db.block(function)):
            with db.Graph(dtype="float64") as graph:
                xs = [F.input(graph, x).keep() for x in arrays]
                ys = [build(graph, x).keep() for x in xs]
                graph.backward(F.sum([F.sum(y) for y in ys]))
                found.append([*[y.value for y in ys], *[x.gradient for x in xs]])
        for plain, blocked in zip(*found, strict=True):
            np.testing.assert_allclose(plain, blocked, rtol=1e-12, atol=1e-12)
