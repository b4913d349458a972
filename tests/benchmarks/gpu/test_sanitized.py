"""The programs that compute-sanitizer watches."""

import re

import numpy as np

from benchmarks.gpu import check, sanitized
from dynbatch.kernels.cuda import elementwise, gated
from dynbatch.kernels.cuda.runtime import source
from dynbatch.kernels.cuda.runtime.queue import queue


def test_the_run_for_the_sanitizer_trains_every_model(cuda):
    queue().kernels("float32").launches.clear()
    states = list(sanitized.run(np.array([[3, 3], [1, 1]])))
    losses = states[-1]["losses"]
    assert len(states) == len(sanitized.MODELS) and len(losses) == 2 * len(states)
    assert states[-1]["launches"] > states[0]["launches"] > states[0]["kernels"] > 10
    assert all(after < before for before, after in zip(losses[::2], losses[1::2], strict=True))


OURS = {name for text in map(source.read, source.names()) for name in text.kernels}


OURS |= {*elementwise.SOURCE.kernels, *gated.SOURCE.kernels}


OF_CUBLAS = (
    "ampere_sgemm_32x32_sliced1x4_tn", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8",
    "cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "gemvNSP_kernel", "gemv2T_kernel_val",
    "cublasGemvTensorStridedBatched", "nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "splitKreduce_kernel",
)  # fmt: skip


def test_the_sanitizer_leaves_out_the_kernels_of_cublas_alone(cuda, monkeypatch):
    command = check.sanitizer("memcheck")
    pattern = re.compile(command[command.index("--kernel-name-exclude") + 1].removeprefix("regex="))
    assert all(map(pattern.search, OF_CUBLAS))
    queue().kernels("float32").launches.clear()
    list(sanitized.run(np.array([[3, 3], [1, 1]])))
    ran = set(queue().kernels("float32").launches)
    assert len(ran) > 30 and not [name for name in OURS | ran if pattern.search(name)]
