import numpy as np

from tests.cuda import fake_cupy


def exercise(kernels):
    """Several warps, several labels of a thread, three tokens, segments of up to two."""
    tags, tokens, longest = 70, 3, 2
    x, dx = [fake_cupy.zeros((tokens, longest * tags), np.float32) for _ in range(2)]
    entries, states, ending, starting = [
        fake_cupy.zeros((tokens, tags), np.float32) for _ in range(4)
    ]
    transitions = fake_cupy.zeros((tags, tags), np.float32)
    start, starts, ends = [fake_cupy.zeros(tags, np.float32) for _ in range(3)]
    shifts, out = fake_cupy.zeros(tokens, np.float32), fake_cupy.zeros(1, np.float32)
    offsets = fake_cupy.asarray(np.array([0, tokens]))
    ids, before = [fake_cupy.zeros(tokens, np.int32) for _ in range(2)]
    shared, sizes, chain = 2 * tags * 4, (longest, tags), (transitions, start, start)
    args = (x, *chain, ids, before, offsets, entries, states, shifts, out, *sizes)
    kernels.launch("semi_crf", (1,), (64,), args, shared)
    arrays = (entries, states, shifts, out, ending, starting, dx, starts, ends)
    args = (x, transitions, start, ids, before, offsets, *arrays, *sizes)
    kernels.launch("semi_crf_backward", (1,), (64,), args, shared)
    lengths, labels = [fake_cupy.zeros((tokens, tags), np.float32) for _ in range(2)]
    args = (x, *chain, offsets, entries, lengths, labels, shifts, *sizes)
    kernels.launch("semi_viterbi", (1,), (64,), args, shared)
