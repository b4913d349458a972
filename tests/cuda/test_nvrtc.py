"""Every CUDA source compiles for every architecture, within budgets of what a device has."""

from itertools import product

import pytest

from dynbatch.kernels.cuda.runtime import source
from tests.cuda import nvrtc
from tests.marks import quick

if nvrtc.missing():
    pytest.skip(nvrtc.missing(), allow_module_level=True)

ARCHITECTURES = (75, 80, 90)
# Consumer cards and newer ones.
OTHERS = (86, 89, 100, 120)
# A multiprocessor has 65,536 registers, and 2,048 threads at most (1,024 on sm_75): at 64 registers
# half of them fit. A spill, or an array that is not kept in registers, goes to slow local memory.
REGISTERS = 64
SHARED_BYTES = 48 * 1024


BUILDS = [*product((*OTHERS, *ARCHITECTURES), ("float", "double"))]


@pytest.mark.parametrize(("architecture", "real"), quick([(90, "float")], BUILDS))
@pytest.mark.parametrize("name", source.names())
def test_every_source_compiles_within_its_budget(name, real, architecture):
    text = source.read(name)
    compiled = nvrtc.compile_kernels(text.text, name, architecture, (f"-DREAL={real}",))
    assert set(compiled) == set(text.kernels)
    for kernel, taken in compiled.items():
        assert taken.registers <= REGISTERS, kernel
        # Attention in double spills two numbers on sm_120, whose cards are slow in double anyway.
        most = 16 if architecture in OTHERS else 0
        assert max(taken.spilled_bytes, taken.stack_bytes) <= most, kernel
        assert taken.shared_bytes <= SHARED_BYTES, kernel


def test_an_error_names_file_and_line():
    body = 'extern "C" __global__ void wrong(REAL* x) {\n    x[0] = y;\n}'
    with pytest.raises(nvrtc.CompileError, match=r"wrong\.cu\(2\).*\"y\" is undefined"):
        nvrtc.compile_kernels(source.join("wrong.cu", body).text, "wrong.cu", 80, ("-DREAL=float",))


def test_too_much_shared_memory_is_refused():
    text = """extern "C" __global__ void large(float* x) {
        __shared__ float tile[12289];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        x[threadIdx.x] = tile[12288 - threadIdx.x];
    }"""
    with pytest.raises(nvrtc.CompileError, match="49156 bytes smem"):
        nvrtc.compile_kernels(text, "large.cu", 80)


def test_spills_and_shared_memory_are_counted():
    text = """extern "C" __global__ void __launch_bounds__(1024) spill(float* x) {
        __shared__ float tile[32];
        float a[120];
        for (int i = 0; i < 120; ++i) a[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 3; ++k) for (int i = 0; i < 120; ++i) a[i] += a[(i * 7 + k) % 120];
        tile[threadIdx.x % 32] = a[3];
        __syncthreads();
        for (int i = 0; i < 120; ++i) x[i * 1024 + threadIdx.x] = a[i] * tile[i % 32];
    }"""
    taken = nvrtc.compile_kernels(text, "spill.cu", 80)["spill"]
    assert taken.spilled_bytes + taken.stack_bytes > 0
    assert taken.shared_bytes == 128
    assert 0 < taken.registers <= 64
