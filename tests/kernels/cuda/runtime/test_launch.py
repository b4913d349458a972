import subprocess
import sys

import numpy as np
import pytest

from dynbatch.errors import BackendError, DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import Kernels

SCALE = source.join(
    "scale.cu",
    """
    extern "C" __global__ void scale(REAL* x, int n, REAL factor, long long shift, bool negate) {
        const long long i = thread_in_grid();
        if (i < n) x[i] = (negate ? -x[i] : x[i]) * factor + shift;
    }
    extern "C" __global__ void is_null(int* out, const REAL* x) { out[0] = x == nullptr; }
    extern "C" __global__ void fill_shared(REAL* x, int n) {
        extern __shared__ REAL room[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
        __syncthreads();
        if (threadIdx.x == 0) x[0] = room[n - 1];
    }
    extern "C" __global__ void fill_both(REAL* x, int n) {
        extern __shared__ REAL room[];
        __shared__ REAL own[32];
        for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
        own[threadIdx.x] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) x[0] = room[n - 1] + own[31];
    }
    """,
)


@pytest.fixture(params=[np.float32, np.float64])
def kernels(request, cupy):
    made = Kernels(request.param, cupy)
    made.add(SCALE)
    return made


def test_python_numbers_are_cast_to_the_parameters_widths(kernels):
    x = kernels.cupy.asarray(np.arange(5, dtype=kernels.dtype))
    for number in (int, np.int16, np.uint64):
        kernels.launch("scale", (1,), (32,), (x, number(5), 0.5, number(1), True))
    assert x.get().tolist() == (np.arange(5) * -0.125 + 0.75).tolist()


def test_an_address_and_a_null_are_pointers(kernels):
    x = kernels.cupy.asarray(np.arange(5, dtype=kernels.dtype))
    kernels.launch("scale", (1,), (32,), (x.data.ptr + x.itemsize, 4, 2.0, 0, False))
    assert x.get().tolist() == [0, 2, 4, 6, 8]
    out = kernels.cupy.zeros(1, np.int32)
    for pointer, null in ((None, 1), (x, 0), (None, 1)):
        kernels.launch("is_null", (1,), (1,), (out, pointer))
        assert out.get()[0] == null


def test_empty_work_is_no_launch(kernels):
    x = kernels.cupy.asarray(np.ones(3, kernels.dtype))
    kernels.launch("scale", (0,), (32,), (x, 3, 2.0, 0, False))
    kernels.launch("scale", (1, 0), (32,), (x, 3, 2.0, 0, False))
    kernels.launch("scale", (1,), (0,), (x, 3, 2.0, 0, False))
    assert x.get().tolist() == [1, 1, 1] and not kernels.launches


def test_launches_are_counted_by_name(kernels):
    x = kernels.cupy.asarray(np.ones(3, kernels.dtype))
    for _ in range(3):
        kernels.launch("scale", (1,), (32,), (x, 3, 1.0, 0, False))
    assert kernels.launches == {"scale": 3}


def test_shared_memory_above_48_kib_is_asked_for(kernels):
    x = kernels.cupy.empty(1, kernels.dtype)
    count = 60 * 1024 // kernels.dtype.itemsize
    kernels.launch("fill_shared", (1,), (64,), (x, count), shared=60 * 1024)
    assert x.get()[0] == count - 1


@pytest.mark.parametrize("size", [48 * 1024, 47 * 1024 + 960])
def test_static_shared_memory_counts_among_the_48_kib(kernels, size):
    """As of a CRF of 6,144 tags: two rows of them, and a number a warp."""
    x = kernels.cupy.empty(1, kernels.dtype)
    count = size // kernels.dtype.itemsize
    kernels.launch("fill_both", (1,), (32,), (x, count), shared=size)
    assert x.get()[0] == count - 1 + 31


def test_arguments_of_another_kind_are_errors(kernels):
    cupy, right = kernels.cupy, kernels.cupy.empty((4, 4), kernels.dtype)
    other = cupy.empty(4, np.int32)
    for error, args in (
        (DtypeError, (other, 4, 1.0, 0, False)),
        (ShapeError, (right.T, 4, 1.0, 0, False)),
        (DtypeError, (right, 4.0, 1.0, 0, False)),
        (OverflowError, (right, 1 << 31, 1.0, 0, False)),
        (ShapeError, (right, 4, 1.0, 0)),
    ):
        with pytest.raises(error):
            kernels.launch("scale", (1,), (32,), args)


def test_two_generated_kernels_of_one_name_are_an_error(kernels):
    kernels.add(SCALE)  # the same text again
    with pytest.raises(ValueError, match="two generated sources define a kernel 'scale'"):
        kernels.add(source.join("other.cu", SCALE.text))


def test_other_dtypes_are_refused():
    with pytest.raises(DtypeError, match="float32 or float64, not int32"):
        Kernels(np.int32, object())


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendError, match="pip install"):
        Kernels(np.float32)


def test_cupy_is_not_imported_before_it_is_needed():
    probe = "import sys, dynbatch.kernels.cuda.runtime.launch; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
