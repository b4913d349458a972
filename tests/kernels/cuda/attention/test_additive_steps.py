"""Additive attention in a prepared loop gives what its kernels give step by step."""

import numpy as np
import pytest

from dynbatch.kernels.attention import additive
from dynbatch.kernels.attention.mask import NO_MASK
from dynbatch.kernels.attention.packed import AttentionGradients, PackedAttention
from dynbatch.kernels.cuda.attention.additive_steps import AdditiveSteps
from dynbatch.kernels.cuda.runtime.loop import PreparedLoop
from dynbatch.kernels.cuda.runtime.queue import queue

COUNTS = np.array([3, 3, 2, 1])  # sentences of each step
KEYS = [5, 33, 1]


def expected(x, dout, keys, values, vector):
    """Outputs, and all gradients, by NumPy step by step."""
    out, dx = np.zeros_like(dout), np.zeros_like(x)
    dkeys, dvalues, dvector = np.zeros_like(keys), np.zeros_like(values), np.zeros_like(vector)
    for t, n in enumerate(COUNTS):
        offsets = np.cumsum([0, *KEYS[:n]])
        rows = int(offsets[-1])
        packed = PackedAttention(x[t, :n], keys[:rows], values[:rows], np.arange(n + 1), offsets)
        weights, room = np.empty(rows, x.dtype), np.empty(1 << 14, x.dtype)
        additive.additive_attention(packed, vector, [NO_MASK] * n, out[t, :n], weights, room)
        wanted = AttentionGradients(dx[t, :n], dkeys[:rows], dvalues[:rows], True)
        dvector += additive.additive_attention_backward(
            packed, vector, weights, dout[t, :n], wanted, room
        )
    return out, dx, dkeys, dvalues, dvector


@pytest.mark.parametrize("width", [1, 33])
def test_all_steps_forward_and_back(cupy, dtype, width):
    """Queries and their gradients are the last columns of rows twice as wide."""
    rng, steps, most = np.random.default_rng(0), COUNTS.size, COUNTS[0]
    x, dout = rng.standard_normal((steps, most, 2 * width)), rng.standard_normal((steps, most, 4))
    keys, values = (rng.standard_normal((sum(KEYS), n)) for n in (width, 4))
    given = [each.astype(dtype) for each in (x, dout, keys, values, rng.standard_normal(width))]
    found = [cupy.asarray(each) for each in given]
    x, dout, keys, values, vector = found
    out, dx = cupy.zeros(dout.shape, dtype), cupy.zeros(x.shape, dtype)
    dkeys, dvalues = cupy.zeros(keys.shape, dtype), cupy.zeros(values.shape, dtype)
    every, back = np.arange(steps), np.arange(steps)[::-1]

    def rows_of(array, order, column=0):
        first = array.data.ptr + column * array.itemsize
        return first + order * array.strides[0], array.shape[2]

    offsets = np.cumsum([0, *KEYS])
    attention = AdditiveSteps(vector, keys, values, offsets, COUNTS, keeps=True)
    for order in (every, back):
        loop = PreparedLoop(queue(), dtype, steps)
        queries = rows_of(x, order, width)
        if order is every:
            attention.forward(loop, order, queries, rows_of(out, order)[0])
        else:
            attention.backward(
                loop, order, queries, rows_of(dout, order)[0],
                rows_of(dx, order, width), dkeys, dvalues,
            )  # fmt: skip
        queue().add(loop)
        assert loop.launches == steps
    queue().flush()
    host = [each.copy() for each in given]
    host[0] = np.ascontiguousarray(host[0][:, :, width:])
    wanted = expected(*host)
    dvector = attention.dvectors.get().sum(axis=0)
    results = [out.get(), dx.get()[:, :, width:], dkeys.get(), dvalues.get(), dvector]
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    for one, other in zip(results, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    assert not dx.get()[:, :, :width].any()


def test_steps_without_backward_share_their_weights(cupy):
    keys = cupy.zeros((sum(KEYS), 2), np.float32)
    offsets = np.cumsum([0, *KEYS])
    kept, shared = [
        AdditiveSteps(keys[0], keys, keys, offsets, COUNTS, keeps=keeps) for keeps in (True, False)
    ]
    assert kept._weights.size == offsets[COUNTS].sum()
    assert shared._weights.size == offsets[-1]
