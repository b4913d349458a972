"""Every CUDA source compiles for every architecture, within budgets of what a device has."""

from itertools import product

import pytest

from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.launch import MINIMAL
from tests.cuda import nvrtc
from tests.marks import quick

if nvrtc.missing():
    pytest.skip(nvrtc.missing(), allow_module_level=True)

# Data centre cards, those for everybody, and Pascal's, of which an 11 GB GTX 1080 Ti is one.
ARCHITECTURES = (75, 80, 90)
CONSUMER = (86, 89, 100, 120)
PASCAL = (60, 61)
# A multiprocessor has 65,536 registers, and 2,048 threads at most (1,024 on sm_75): at 64 registers
# half of them fit. A spill, or an array that is not kept in registers, goes to slow local memory.
REGISTERS = 64
SHARED_BYTES = 48 * 1024
# Its compiler gives a ragged product in double four more, on cards that are slow in double anyway:
# a block less a multiprocessor, and no spill.
REGISTERS_OF_PASCAL_IN_DOUBLE = 68
# On tensor cores sums of 16 rows by 128 columns stay in registers, 64 a lane, or twice as many for
# keys and values: three blocks of 128 threads to a multiprocessor, or two, as in FlashAttention-2.
# The delta rule's backward takes 70 to 128, in double 166 at most. Bounds made it spill.
MORE_REGISTERS = {
    "dot_attention_mma": 168, "dot_attention_backward_mma": 168,
    "dot_attention_backward_keys_mma": 255,
    "gated_delta_rule": 80, "gated_delta_rule_backward": 168,
}  # fmt: skip


ON_BY_DEFAULT = [name for name in source.names() if "mma" not in name]
"""Of these a change is told at once; attention on tensor cores takes 12 s, and is off."""

BUILDS = [*product((*CONSUMER, *ARCHITECTURES, *PASCAL), ("float", "double"))]


@pytest.mark.parametrize(("architecture", "real"), quick([(90, "float")], BUILDS))
@pytest.mark.parametrize("name", quick(ON_BY_DEFAULT, source.names()))
def test_every_source_compiles_within_its_budget(name, real, architecture):
    if why := nvrtc.missing(architecture):
        pytest.skip(why)
    text = source.read(name)
    compiled = nvrtc.compile_kernels(text.text, name, architecture, (f"-DREAL={real}",))
    assert set(compiled) == set(text.kernels)
    is_old_double = architecture in PASCAL and real == "double"
    for kernel, taken in compiled.items():
        registers = REGISTERS_OF_PASCAL_IN_DOUBLE if is_old_double else REGISTERS
        assert taken.registers <= MORE_REGISTERS.get(kernel, registers), kernel
        # On sm_120 gradients of keys under a bias and dropout spill three numbers.
        most = 16 if (architecture, real) == (120, "float") else 0
        assert max(taken.spilled_bytes, taken.stack_bytes) <= most, kernel
        assert taken.shared_bytes <= SHARED_BYTES, kernel


@pytest.mark.parametrize("name", quick(["segment.cu"], source.names()))
def test_what_no_kernel_uses_can_be_left_out_and_nothing_else_changes(name):
    text, options = source.read(name).text, ("-DREAL=float",)
    assert nvrtc.ptx(text, name, (*options, MINIMAL)) == nvrtc.ptx(text, name, options)


def test_the_options_are_those_that_cupy_passes(monkeypatch):
    """CuPy itself is asked, which needs no GPU up to the moment when it would compile."""
    pytest.importorskip("cupy")
    from cupy._core import core
    from cupy.cuda import compiler

    class Compiling(Exception):
        pass

    class Program:
        def __init__(self, *_, **__):
            pass

        def compile(self, options, _):
            raise Compiling(options)

    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    monkeypatch.setattr(compiler, "_preprocess", lambda *_: "")
    # It asks the device for no more than this, given the architecture.
    undecorated = compiler._get_arch_for_options_for_nvrtc.__wrapped__
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", undecorated)
    ours = ("-std=c++17", "-DREAL=float")
    given = core.assemble_cupy_compiler_options(ours)
    with pytest.raises(Compiling) as found:
        compiler._compile_with_cache_cuda("", given, "90", cache_in_memory=True)
    (options,) = found.value.args
    assert nvrtc.cupy_options(90, ours) == tuple([o for o in options if o[:2] != "-I"])


def test_an_error_names_file_and_line():
    body = 'extern "C" __global__ void wrong(REAL* x) {\n    x[0] = y;\n}'
    with pytest.raises(nvrtc.CompileError, match=r"wrong\.cu\(2\).*\"y\" is undefined"):
        nvrtc.compile_kernels(source.join("wrong.cu", body).text, "wrong.cu", 80, ("-DREAL=float",))


def test_an_instruction_of_one_architecture_needs_its_name_among_the_options():
    """CuPy's, which follow, name the architecture without the letter and change nothing."""
    text = 'extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;"); }'
    with pytest.raises(nvrtc.CompileError, match=r"not supported on \.target 'sm_90'"):
        nvrtc.compile_kernels(text, "fence.cu", 90)
    assert nvrtc.cupy_options(90, ("-arch=sm_90a",)) == (
        "-arch=sm_90a", "-ftz=true", "-arch=sm_90", "--device-as-default-execution-space",
    )  # fmt: skip
    assert nvrtc.compile_kernels(text, "fence.cu", 90, ("-arch=sm_90a",)).keys() == {"fence"}


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
