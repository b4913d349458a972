import numpy as np

from tests.cuda import fake_cupy


def exercise(kernels):
    """Several warps, several states of a thread, three frames."""
    frames, classes, count = 3, 5, 70
    x, dx = [fake_cupy.zeros((frames, classes), np.float32) for _ in range(2)]
    ids, following = [fake_cupy.zeros(count, np.int32) for _ in range(2)]
    is_first = fake_cupy.asarray((np.arange(count) == 0).astype(np.int32))
    following = fake_cupy.asarray(np.append(np.arange(1, count), -1).astype(np.int32))
    tables = [fake_cupy.asarray(np.array([0, end])) for end in (frames, count, 0)]
    states = fake_cupy.zeros(frames * (2 * count + 1), np.float32)
    scratch = fake_cupy.zeros(3 * (2 * count + 1), np.float32)
    shifts, out = fake_cupy.zeros(frames, np.float32), fake_cupy.zeros(1, np.float32)
    args = (x, ids, *tables, states, shifts, out, classes, 4, False)
    kernels.launch("ctc", (1,), (128,), args)
    states = fake_cupy.zeros(frames * (2 * count + 1), np.float32)  # with a path
    args = (
        x,
        ids,
        is_first,
        following,
        *tables,
        states,
        shifts,
        out,
        scratch,
        dx,
        classes,
        4,
        False,
    )
    kernels.launch("ctc_backward", (1,), (128,), args)
