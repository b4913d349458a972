"""`compiled_ahead`: kernels that are started for the first time, compiled side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dynbatch.kernels.cuda.runtime.launch import Kernels
from dynbatch.kernels.runtime.parallel import own_processors


@contextmanager
def compiled_ahead(kernels: Iterable[Kernels]) -> Iterator[None]:
    """Have threads compile what is needed for the current device, while the block starts the work.

    `Kernels.loaded` waits for the thread that compiles its kernel, and raises what that met: so an
    error names the launch, and the launches before it have been started. Behind an error or an
    interrupt nothing new is begun; what a thread is at, it ends, and CuPy's cache has it whole.

    Args:
        kernels: those of all element types, of one queue.
    """
    needed = [(each, name) for each in kernels for name in dict.fromkeys(each.needed)]
    if not needed:
        yield
        return
    for each, _ in needed:
        each.needed.clear()
    if len(needed) == 1:
        yield
        return
    device = needed[0][0].cupy.cuda.Device()
    threads = min(len(needed), own_processors())
    pool = ThreadPoolExecutor(threads, "compile", initializer=device.use)
    try:
        for each, name in needed:
            each.ahead[name] = pool.submit(each.compile, name)
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for each, name in needed:
            each.ahead.pop(name, None)
