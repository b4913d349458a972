"""A kernel runs where its arrays live: its own arguments tell whether its CUDA version does."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch.kernels import segment
from dynbatch.kernels.attention import dot_product as attention
from dynbatch.kernels.runtime.dispatch import CUDA_KERNELS, HOST, cuda_version, kernel

OFFSETS = np.array([0, 2, 2, 5])


class DeviceArray:
    """Anything that is no NumPy array lies on a device."""


@pytest.fixture
def noting(monkeypatch):
    """A kernel whose CUDA version notes its calls, and the calls.

    It is decorated anew: the kernel itself would go on calling the version that it found first.
    """

    def install(chosen):
        module = chosen.__module__.removeprefix("dynbatch.kernels.")
        name = chosen.__name__
        calls = []
        home = SimpleNamespace(**{name: lambda *args, **named: calls.append((name, args, named))})
        monkeypatch.setitem(sys.modules, f"dynbatch.kernels.cuda.{module}", home)
        monkeypatch.setitem(CUDA_KERNELS, f"{module}.{name}", chosen)  # put back afterwards
        return kernel(chosen.at, cuda=HOST)(chosen.__wrapped__), calls

    return install


def test_arrays_of_the_host_stay_with_numpy():
    out = np.empty((3, 1))
    segment.reduce_segments(np.add, np.ones((5, 1)), OFFSETS, out, 0)
    assert out[:, 0].tolist() == [2, 0, 3]


@pytest.mark.parametrize("name", sorted(CUDA_KERNELS))
def test_every_cuda_version_is_chosen_by_a_parameter_that_it_has(name):
    decider = CUDA_KERNELS[name].at
    parameters = list(inspect.signature(CUDA_KERNELS[name]).parameters)
    if isinstance(decider, str):
        assert parameters[0] in {"packed", "a", "x"}
    else:
        assert parameters[decider] in {
            "x", "a", "dy", "rows", "values", "hidden", "logits", "array", "spec", "out",
            "weight", "mask", "target", "queries",
        }  # fmt: skip


@pytest.mark.parametrize("name", sorted(CUDA_KERNELS))
def test_every_kernel_has_a_cuda_version_with_its_parameters(name):
    cuda_kernel = cuda_version(CUDA_KERNELS[name])
    expected = [
        (p.name, p.default) for p in inspect.signature(CUDA_KERNELS[name]).parameters.values()
    ]
    found = [(p.name, p.default) for p in inspect.signature(cuda_kernel).parameters.values()]
    assert found == expected


def test_a_device_array_goes_to_the_cuda_version_with_all_arguments(noting):
    x, out = DeviceArray(), DeviceArray()
    reduce_segments, calls = noting(segment.reduce_segments)
    reduce_segments(np.add, x, OFFSETS, out, 0)
    assert [name for name, _, _ in calls] == ["reduce_segments"]
    assert calls[0][1] == (np.add, x, OFFSETS, out, 0)


def test_the_arrays_of_a_packed_argument_decide(noting):
    q = DeviceArray()
    dot_attention, calls = noting(attention.dot_attention)
    packed = attention.PackedAttention(q, q, q, OFFSETS, OFFSETS)
    dot_attention(packed, None, q, None, q)
    assert calls[0][1][0] is packed


@pytest.mark.parametrize("place", ["blas.absent", "absent.matmul"])
def test_a_kernel_without_a_cuda_version_is_named(place):
    def absent(x, out):
        """A kernel."""

    module, absent.__name__ = place.split(".")
    absent.__module__ = f"dynbatch.kernels.{module}"
    with pytest.raises(db.errors.BackendError, match=rf"{place} has no CUDA version"):
        kernel(cuda=HOST)(absent)(DeviceArray(), None)
