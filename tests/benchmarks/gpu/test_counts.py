"""Bytes and operations of known kernels and products, counted exactly."""

import json
import subprocess
import sys

import pytest

from tests.cuda import simulator

if simulator.missing():
    pytest.skip(simulator.missing(), allow_module_level=True)

# The race checker's hooks and these have the same names: the counters get a process of their own.
KNOWN = '''
import dataclasses, json
import numpy as np
from benchmarks.gpu.counts import counting
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import fake_cupy

BODY = """
extern "C" __global__ void known(REAL* y, const REAL* x, int n) {
    __shared__ REAL place[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    place[threadIdx.x] = x[0] * x[i];                // x[0]: asked for by all, touched once
    y[i] = place[threadIdx.x] < 1 ? exp(y[i]) + 1 : 0;
}
"""
with counting() as found:
    x, y = fake_cupy.zeros(100, np.float32), fake_cupy.zeros(100, np.float32)
    queue().kernels("float32").add(source.join("known.cu", BODY))
    queue().launch("float32", "known", (4,), (32,), (y, x, 100))
    a, b, c = (fake_cupy.zeros(shape, np.float64) for shape in ((3, 4), (4, 5), (3, 5)))
    address = [array.data.ptr for array in (a, b, c)]
    for beta in (0, 1):
        queue().cublas("float64").gemm(
            False, False, 3, 5, 4, address[0], 4, address[1], 5, beta, address[2], 5
        )
    queue().flush()
print(json.dumps({name: dataclasses.astuple(one) for name, one in found.items()}))
'''


def output_of(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_what_a_kernel_and_a_product_do_is_counted_exactly():
    found = output_of("-c", KNOWN)
    assert found["known"] == [1, 300, 4 * 300, 4 * 400]
    touched = 8 * (12 + 20 + 15 + 12 + 20 + 2 * 15)
    assert found["gemm"] == [2, 2 * 2 * 3 * 5 * 4, touched, touched]


@pytest.mark.exhaustive
def test_a_training_step_is_counted_launch_by_launch():
    found = output_of("-m", "benchmarks.gpu.counts", "tree", "--batch=3", "--hidden=8", "--json")
    total = found["tree"].pop("total")
    (adam,) = [count for name, count in found["tree"].items() if name.startswith("adam_")]
    assert adam["launches"] == 1 and found["tree"]["gemm"]["operations"] > 0
    for counter in ("launches", "operations", "asked_bytes"):
        assert total[counter] == sum(one[counter] for one in found["tree"].values())
    touched = sum(one["touched_bytes"] for one in found["tree"].values())
    assert 0 < total["touched_bytes"] - touched < 10**6  # the upload
