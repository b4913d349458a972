"""Each case of the table: CUDA against NumPy, with as many launches as it says."""

import numpy as np

from dynbatch.kernels.cuda.runtime.queue import queue
from tests.kernels.cuda.compare import ROUNDINGS, assert_versions_agree, launches
from tests.kernels.table import CASES
from tests.kernels.table.call import Call, every

IN_CUDA = [case for case in CASES if case.has("cuda")]


@every(IN_CUDA)
def test_cuda_leaves_what_numpy_leaves(cupy, dtype, case):
    case.each(dtype, against_numpy)


def against_numpy(call: Call) -> None:
    assert call.has("cuda")
    near = {"rtol": call.rtol, "atol": call.atol}
    uploads = queue().uploads
    with launches(call.launches):
        if call.by_plain:
            call.kernel(*(arguments := call.on_device()), **call.named)
            queue().flush()
            (plain,), found = call.expected(), arguments[-1].get()
            factor = 1 if found.dtype == np.float32 else ROUNDINGS
            near = {name: factor * value for name, value in near.items()}
            np.testing.assert_allclose(found, plain, **near)
        else:
            assert_versions_agree(call.kernel, *call.arguments, **near, **call.named)
    assert call.uploads in (None, queue().uploads - uploads)
    if call.over is not None:
        apart, shared = call.in_place(call.on_device())
        queue().flush()
        assert apart.get().tobytes() == shared.get().tobytes()
    if call.alone:
        pairs = list(call.segments_alone(call.on_device()))
        queue().flush()
        for together, own in pairs:
            assert together.get().tobytes() == own.get().tobytes()
