"""Calls of C are printed from C's own parameters, and cost a frame of Python."""

import inspect
import sys

import numpy as np
import pytest

from dynbatch.kernels import dropout, elementwise, kmax_pool, layer_norm, softmax
from dynbatch.kernels.c.runtime import calls
from dynbatch.kernels.runtime.dispatch import C_KERNELS, HOST, ROWS, SEGMENTS, c_version
from dynbatch.kernels.unary import activations

OFFSETS = np.array([0, 1, 3])


class Frames:
    """The frames of Python below a function, from its call to that of C, and all that are made."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.made = 0

    def of(self, file, name, kernel, *args):
        """Frames on the way to a function of C, and made before it, of a kernel's second call."""
        kernel(*args)
        functions = calls.library_of(file).functions(np.dtype(np.float32))
        run, seen = getattr(functions, name), []

        def noted(*arguments):
            sys.setprofile(None)
            depth, frame = 0, sys._getframe(1)
            while frame.f_code is not Frames.of.__code__:
                depth, frame = depth + 1, frame.f_back
            seen.append((depth, self.made - 1))  # without this one
            run(*arguments)

        self.made = 0
        with self._monkeypatch.context() as patch:
            patch.setattr(functions, name, noted)
            sys.setprofile(self._count)
            kernel(*args)
            sys.setprofile(None)
        (found,) = seen
        return found

    def _count(self, frame, event, argument):
        self.made += event == "call"


@pytest.fixture
def frames(monkeypatch):
    return Frames(monkeypatch)


def test_a_kernel_with_a_walk_is_two_frames_from_c(frames):
    x, out = np.ones((3, 4), np.float32), np.empty((3, 4), np.float32)
    assert frames.of("softmax.c", "softmax", softmax.softmax, x, OFFSETS, out) == (2, 3)
    stats = np.empty(3, np.float32), np.empty(3, np.float32)
    norm = layer_norm.layer_norm, x, None, None, 1e-5, out, *stats
    assert frames.of("layer_norm.c", "layer_norm", *norm) == (2, 3)
    streams, p = np.ones(2, np.uint32), np.full(2, 0.5)
    drop = dropout.dropout, x.reshape(-1), streams, p, OFFSETS * 4, out.reshape(-1)
    assert frames.of("dropout.c", "dropout", *drop) == (2, 3)


def test_a_function_of_one_value_is_three_frames_from_c(frames):
    x, out = np.ones(12, np.float32), np.empty(12, np.float32)
    back = elementwise.apply_backward, activations.tanh, x, x, out
    assert frames.of("loops.c", "each_tanh_back", *back) == (3, 5)
    forward = elementwise.apply, activations.sigmoid, x, out
    assert frames.of("loops.c", "each_sigmoid_of", *forward) == (3, 5)


@pytest.mark.parametrize("label", sorted(k for k, each in C_KERNELS.items() if each.c is not HOST))
def test_c_has_the_parameters_of_every_kernel_with_a_walk(label):
    kernel = C_KERNELS[label]
    assert inspect.signature(c_version(kernel)).parameters.keys() == (
        inspect.signature(kernel).parameters.keys()
    )


def test_a_parameter_that_c_lacks_is_named():
    def softmax(x, offsets, base, out):
        """A kernel."""

    softmax.__module__ = "dynbatch.kernels.softmax"
    with pytest.raises(LookupError, match=r"^softmax.c: softmax and its kernel differ in base$"):
        calls.call_of(softmax, SEGMENTS)


def test_a_parameter_that_the_kernel_lacks_is_named():
    def layer_norm(x, weight, bias, eps, out, mean):
        """A kernel."""

    layer_norm.__module__ = "dynbatch.kernels.layer_norm"
    with pytest.raises(LookupError, match=r"layer_norm and its kernel differ in kept, rstd$"):
        calls.call_of(layer_norm, ROWS)


REFUSED = {
    "another dtype": np.empty((3, 4), np.float64),
    "columns first": np.empty((4, 3), np.float32).T,
    "gaps": np.empty((3, 8), np.float32)[:, ::2],
}


@pytest.mark.parametrize("out", REFUSED.values(), ids=REFUSED)
def test_c_leaves_arrays_that_it_cannot_read_to_numpy(out):
    x = np.ones((3, 4), np.float32)
    assert c_version(softmax.softmax)(x, OFFSETS, out) is NotImplemented
    integers = np.zeros((3, 4), np.int32)
    assert c_version(softmax.softmax)(integers, OFFSETS, out) is NotImplemented


def test_c_takes_integers_as_wide_as_its_numbers_alone():
    x, largest = np.arange(12, dtype=np.float32).reshape(3, 4), np.empty((1, 4), np.float32)
    narrow, wide = np.empty((1, 4), np.int32), np.empty((1, 4), np.int64)
    arguments = x, np.array([0, 3]), 1, largest
    assert c_version(kmax_pool.kmax_pool)(*arguments, wide) is NotImplemented
    assert c_version(kmax_pool.kmax_pool)(*arguments, narrow) is None
    assert narrow.tolist() == [[2, 2, 2, 2]]


def test_rows_apart_are_read_where_a_stride_is_told_and_tables_are_converted():
    wide = np.ones((3, 9), np.float32)
    outs = np.empty((2, 3, 4), np.float32), np.empty((2, 3, 4), np.float32)
    stats = np.empty(3, np.float32), np.empty(3, np.float32)
    for x, out in zip((wide[:, 2:6], wide[:, 2:6].copy()), outs, strict=True):
        assert c_version(layer_norm.layer_norm)(x, None, None, 1e-5, out[0], *stats) is None
        assert c_version(softmax.softmax)(x.copy(), OFFSETS.astype(np.int32), out[1]) is None
    assert outs[0].tobytes() == outs[1].tobytes()
    assert outs[0][1].sum() == 8
