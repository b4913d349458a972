"""Devices by name, and what is said where there is none."""

import builtins
from types import SimpleNamespace

import numpy as np
import pytest

from dynbatch import backend
from dynbatch.errors import BackendError


def test_the_cpu_is_numpy():
    assert backend.device("cpu").xp is np
    assert not backend.device("cpu").is_cuda
    assert backend.device_of(np.zeros(1)) is backend.CPU


def test_an_unknown_name():
    with pytest.raises(BackendError, match="device 'tpu' is unknown"):
        backend.device("tpu")


def test_without_cupy_one_sentence_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **named):
        if name == "cupy":
            raise ImportError("No module named 'cupy'")
        return real(name, *args, **named)

    monkeypatch.setattr(backend.importlib, "import_module", refuse)
    with pytest.raises(BackendError, match=r"pip install 'dynbatch\[cuda13\]'"):
        backend.device("cuda")


class NoDriver(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("found", "message"),
    [(0, "no GPU was found"), (NoDriver("driver is too old"), "driver is too old.*install")],
)
def test_without_a_gpu_the_error_says_why(found, message):
    def count():
        if isinstance(found, int):
            return found
        raise found

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=NoDriver)
    module = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    with pytest.raises(BackendError, match="(?s)" + message):
        backend.require_gpu(module)


def test_without_cublas_the_error_says_what_to_install():
    class Cuda:
        runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=NoDriver)

        @property
        def cublas(self):
            raise ImportError('Failure finding "libcublasLt.so.13"')

    with pytest.raises(BackendError, match=r"(?s)libcublasLt.*pip install 'dynbatch\[cuda13\]'"):
        backend.require_gpu(SimpleNamespace(cuda=Cuda()))


def test_a_stand_in_takes_the_place_of_cupy():
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1)
    module = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    with backend.stand_in(module):
        assert backend.device("cuda").xp is module
        array = SimpleNamespace(data=SimpleNamespace(device_id=0))
        assert backend.device_of(array).name == "cuda"


def card(capability, cuda, count=1):
    """CuPy on a machine with one GPU of a capability, as "70", built for a version of CUDA."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: count,
        CUDARuntimeError=NoDriver,
        runtimeGetVersion=lambda: cuda,
    )
    device = SimpleNamespace(compute_capability=capability)
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, cublas=None, Device=lambda: device)
    )


def test_a_gpu_that_cuda_13_does_not_know_is_named_with_the_version_that_does():
    with pytest.raises(BackendError, match=r"capability 7\.0(?s:.*)7\.5 or more(?s:.*)\[cuda12\]"):
        backend.require_gpu(card("70", 13000))
    for capability, cuda in (("70", 12090), ("75", 13000), ("90", 13010), ("121", 13000)):
        backend.require_gpu(card(capability, cuda))


def test_a_gpu_that_is_too_old_for_every_cuda_is_sent_to_none_of_them():
    for cuda in (12090, 13000):
        with pytest.raises(BackendError, match=r"capability 5\.2") as found:
            backend.require_gpu(card("52", cuda))
        assert "cuda12" not in str(found.value) and 'device="cpu"' in str(found.value)


class OutOfMemoryError(Exception):
    """PyTorch's, for instance."""


@pytest.mark.parametrize(
    ("error", "says_so"),
    [
        (MemoryError("pinned"), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), True),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested"), False),
        (RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED"), False),
        (KeyError("cudaErrorInvalidValue"), False),
    ],
)
def test_what_says_that_memory_ran_out(error, says_so):
    assert backend.is_out_of_memory(error) is says_so


@pytest.mark.parametrize(("failures", "tries"), [(0, 1), (1, 2), (2, 2)])
def test_what_finds_no_memory_is_tried_once_more_without_what_cupy_holds_unused(failures, tries):
    done = []

    def make():
        done.append("make")
        if done.count("make") <= failures:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        return "made"

    pool = SimpleNamespace(free_all_blocks=lambda: done.append("free"))
    with backend.stand_in(SimpleNamespace(get_default_memory_pool=lambda: pool)):
        if failures > 1:
            with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
                backend.with_memory_of_cupy(make)
        else:
            assert backend.with_memory_of_cupy(make) == "made"
        assert done == ["make", "free", "make"][: 2 * tries - 1]
        with pytest.raises(KeyError):
            backend.with_memory_of_cupy(lambda: {}[0])
        assert done.count("free") == tries - 1
