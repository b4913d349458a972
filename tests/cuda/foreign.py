"""A tensor of another library that is on the GPU, with a stream of its own, as PyTorch has it."""

from __future__ import annotations

from typing import Any


class Tensor:
    """Speaks DLPack and nothing else.

    Args:
        cupy:  CuPy or its stand-in, which holds the memory.
        array: of the host; its copy to the GPU is work of the tensor's stream.
        stream: where the library works; a new one that the null stream does not wait for.
    """

    def __init__(self, cupy: Any, array: Any, stream: Any = None) -> None:
        self.cupy = cupy
        self.stream = stream or cupy.cuda.Stream(non_blocking=True)
        with self.stream:
            self.array = cupy.asarray(array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, **options: Any) -> Any:
        with self.stream:
            return self.array.__dlpack__(**options)


class Interfaced:
    """Has `__cuda_array_interface__` and nothing else, as a device array of Numba."""

    def __init__(self, cupy: Any, array: Any) -> None:
        self.array = cupy.asarray(array)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.array.__cuda_array_interface__  # type: ignore[no-any-return]


class Unshared(Tensor):
    """A tensor that its library does not hand out: it requires a gradient, say."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
