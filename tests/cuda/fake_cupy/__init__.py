"""A stand-in for CuPy on a machine without a GPU: the names that dynbatch uses, with CuPy's rules.

Kernels run in the simulator. What the stand-in does not have, dynbatch does not use;
`test_fake_cupy.py` checks that what it has exists in CuPy too.
"""

from types import SimpleNamespace

from tests.cuda.fake_cupy import cublas, memory, nccl, stream
from tests.cuda.fake_cupy.array import asarray, ascontiguousarray, asnumpy, empty, ndarray, zeros
from tests.cuda.fake_cupy.dlpack import from_dlpack
from tests.cuda.fake_cupy.memory import get_default_memory_pool
from tests.cuda.fake_cupy.raw import RawKernel, RawModule, launchKernel
from tests.cuda.fake_cupy.stream import settings

__all__ = [
    "RawKernel",
    "RawModule",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "cuda",
    "empty",
    "from_dlpack",
    "get_default_memory_pool",
    "ndarray",
    "settings",
    "zeros",
]

__version__ = "0 (the stand-in)"

runtime = SimpleNamespace(
    CUDARuntimeError=memory.CUDARuntimeError,
    deviceSynchronize=memory.deviceSynchronize,
    driverGetVersion=lambda: 13000,
    getDevice=stream.current_device,
    getDeviceCount=memory.getDeviceCount,
    getDeviceProperties=lambda device: {"name": b"no card, the simulator"},
    memGetInfo=memory.memGetInfo,
    memcpyAsync=memory.memcpyAsync,
    memcpyDeviceToDevice=memory.memcpyDeviceToDevice,
    memcpyDeviceToHost=memory.memcpyDeviceToHost,
    memcpyHostToDevice=memory.memcpyHostToDevice,
    memsetAsync=memory.memsetAsync,
    runtimeGetVersion=lambda: 13000,
)
cuda = SimpleNamespace(
    Device=stream.Device,
    Event=stream.Event,
    Graph=stream.Graph,
    Memory=memory.Memory,
    MemoryPointer=memory.MemoryPointer,
    Stream=stream.Stream,
    UnownedMemory=memory.UnownedMemory,
    alloc=memory.alloc,
    alloc_pinned_memory=memory.alloc_pinned_memory,
    cublas=SimpleNamespace(**{name: getattr(cublas, name) for name in cublas.__all__}),
    driver=SimpleNamespace(launchKernel=launchKernel),
    get_cublas_handle=cublas.get_cublas_handle,
    get_current_stream=stream.get_current_stream,
    get_elapsed_time=stream.get_elapsed_time,
    is_available=lambda: True,
    nccl=nccl,
    memory=SimpleNamespace(OutOfMemoryError=memory.OutOfMemoryError),
    nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
    runtime=runtime,
)
