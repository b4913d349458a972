"""Figures that nobody can reckon: a launch, a small product, attention. Medians of few rounds.

* launch: microseconds of the host for one, by CuPy's kernel object and by the queue, and of the
  device, for a kernel that does next to nothing;
* product: microseconds of the device for one of 64 x 1024 x 256, by cuBLAS in each precision;
* attention: TFLOP/s of the device forward and backward, 4 and 10 operations for each pair of a
  query and a key that it sees and each number of a head, in float32 by the plain kernels and
  rounded on tensor cores, beside PyTorch's on the same shapes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.cases import precisions
from benchmarks.gpu.job import tell
from dynbatch import backend
from dynbatch.backend import spec_of
from dynbatch.errors import BackendError
from dynbatch.kernels.attention import dot_product
from dynbatch.kernels.attention.blocks import Scoring
from dynbatch.kernels.attention.mask import NO_MASK, UNBOUNDED, Mask
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.attention import dot_product as cuda_attention
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.precision import multiplying

ROUNDS = 5
LAUNCHES = 1000
PRODUCT = (64, 1024, 256)
# Sentences, tokens of each, heads, width of a head, whether causal.
SHAPES = (
    (64, 22, 4, 64, True),
    (32, 160, 12, 64, False),
    (16, 512, 12, 64, False),
    (16, 512, 12, 64, True),
    (16, 512, 12, 32, False),
    (16, 512, 12, 128, False),
    (4, 2048, 12, 64, True),
)


def timed(work: Callable[[], Any], times: int) -> tuple[float, float]:
    """Microseconds of the host and of the device for one `work`, which waits for nothing."""
    cuda = backend.cupy().cuda
    host, device = [], []
    for _ in range(ROUNDS + 1):
        first, last = cuda.Event(), cuda.Event()
        cuda.runtime.deviceSynchronize()
        first.record()
        begin = time.perf_counter()
        for _ in range(times):
            work()
        queue().flush()
        host.append((time.perf_counter() - begin) / times)
        last.record()
        last.synchronize()
        device.append(cuda.get_elapsed_time(first, last) / times)
    return 1e6 * statistics.median(host[1:]), 1e3 * statistics.median(device[1:])


def launch(times: int = LAUNCHES) -> dict[str, Any]:
    """A kernel of one thread block that writes one number."""
    out = backend.cupy().empty((1, 1), np.float32)
    args = (out, 1, 1, 1)
    ours, device = timed(lambda: queue().launch("float32", "zero_rows", (1,), (32,), args), times)
    text = source.home("zero_rows").text
    module = backend.cupy().RawModule(code=text, options=("-std=c++17", "-DREAL=float"))
    kernel = module.get_function("zero_rows")
    found = {"queue_us": ours, "device_us": device, "cupy_us": None}
    if callable(kernel):  # not the stand-in's
        cast = (out, *[kind(1) for kind in _integers("zero_rows")])
        found["cupy_us"] = timed(lambda: kernel((1,), (32,), cast), times)[0]
    return found


def _integers(kernel: str) -> list[type[np.generic]]:
    kinds: dict[str, type[np.generic]] = {"int": np.int32, "long long": np.int64}
    return [kinds[p.type] for p in source.home(kernel).kernels[kernel] if not p.is_pointer]


def product(times: int = LAUNCHES) -> dict[str, Any]:
    """cuBLAS on a step's product: rows of a batch by the weights of an LSTM."""
    m, n, k = PRODUCT
    cupy = backend.cupy()
    a, b, c = (cupy.zeros(shape, np.float32) for shape in ((m, k), (n, k), (m, n)))
    found: dict[str, Any] = {"shape": PRODUCT}
    for precision in precisions():
        with multiplying(precision):
            cublas = queue().cublas("float32")
            args = (False, True, m, n, k, a.data.ptr, k, b.data.ptr, k, 0, c.data.ptr, n)
            host, device = timed(lambda: cublas.gemm(*args), times)  # noqa: B023  # used at once
        found[precision] = {"host_us": host, "device_us": device}
    return found


def attention(
    sentences: int, tokens: int, heads: int, width: int, is_causal: bool, times: int = 20
) -> dict[str, Any]:
    """TFLOP/s of one shape; of PyTorch in float32 and bfloat16 where it finds the card."""
    cupy, rng = backend.cupy(), np.random.default_rng(1)
    rows, columns = sentences * tokens, heads * width
    drawn = [rng.standard_normal((rows, columns), np.float32) for _ in range(4)]
    q, k, v, dout = map(cupy.asarray, drawn)
    out, dq, dk, dv = (cupy.empty((rows, columns), np.float32) for _ in range(4))
    sums = cupy.empty((rows, heads), np.float32)
    offsets, lengths = np.arange(sentences + 1) * tokens, [tokens] * sentences
    packed = PackedAttention(q, k, v, offsets, offsets)
    mask = Mask(UNBOUNDED, 0) if is_causal else NO_MASK
    scales = np.full(sentences, width**-0.5, np.float32)
    scoring = Scoring(heads, scales, [mask] * sentences)
    forward_room, backward_room = (
        cupy.empty(max(1, size), np.float32)
        for size in (
            dot_product.workspace(spec_of(q), lengths, lengths, scoring),
            dot_product.workspace_backward(spec_of(q), lengths, lengths, scoring),
        )
    )
    wanted = AttentionGradients(dq, dk, dv)

    def run_forward() -> None:
        dot_product.dot_attention(packed, scoring, out, sums, forward_room)

    def run_backward() -> None:
        dot_product.dot_attention_backward(packed, scoring, sums, out, dout, wanted, backward_room)

    pairs = sentences * (tokens * (tokens + 1) // 2 if is_causal else tokens**2)
    operations = pairs * columns
    rates = {}
    for precision in precisions():
        with multiplying(precision), mock.patch.object(cuda_attention, "TENSOR_CORES", True):
            rates[precision] = {
                "forward": _tera(4 * operations, timed(run_forward, times)[1]),
                "backward": _tera(10 * operations, timed(run_backward, times)[1]),
            }
    return {
        "shape": {"sentences": sentences, "tokens": tokens, "heads": heads, "width": width,
                  "is_causal": is_causal},
        "tflops": rates,
        "torch": _torch(drawn, (sentences, tokens, heads, width), is_causal, operations, times),
    }  # fmt: skip


def _torch(
    drawn: Sequence[Any], shape: tuple[int, ...], is_causal: bool, operations: int, times: int
) -> dict[str, Any]:
    """Forward TFLOP/s of `scaled_dot_product_attention` by precision, none without a card."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    found = {}
    for name in ("float32", "bfloat16"):
        parts = [
            torch.from_numpy(x).to("cuda", getattr(torch, name)).view(shape).transpose(1, 2)
            for x in drawn[:3]
        ]

        def attend(parts: list[Any] = parts) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=is_causal)

        with torch.no_grad():
            found[name] = _tera(4 * operations, timed(attend, times)[1])
    return found


def _tera(operations: int, microseconds: float) -> float:
    """10^12 operations a second; events do not tell less than half a microsecond."""
    return operations / max(microseconds, 0.5) / 1e6


def measure() -> Iterator[dict[str, Any]]:
    """All that can be measured here, by and by; what fails says so and stops no other."""
    works: dict[str, Callable[[], Any]] = {"launch": launch, "product": product}
    works |= {f"attention {k}": partial(attention, *shape) for k, shape in enumerate(SHAPES)}
    found: dict[str, Any] = {}
    for name, work in works.items():
        try:
            found[name] = work()
        except Exception as error:
            queue().discard()
            found[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON after each measurement; status 1 where one could not be made."""
    argparse.ArgumentParser(prog="python -m benchmarks.gpu.micro", description=__doc__).parse_args(
        arguments
    )
    try:
        backend.device("cuda")
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    return int(any("failed" in part for part in tell(measure()).values()))


if __name__ == "__main__":
    sys.exit(main())
