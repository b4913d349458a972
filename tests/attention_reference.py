"""Attention written out: the oracle of the attention tests. Loops, no batching, no cleverness."""

import numpy as np

import dynbatch as db
from dynbatch import nodes as F

# Queries and keys of one mini-batch: none, one, and very uneven numbers of both.
LENGTHS = [(3, 5), (1, 1), (0, 4), (2, 0), (1, 7), (40, 33), (0, 0), (7, 2), (1, 3)]


def visible(queries, keys, left=None, right=None, mask=None):
    """(T_q, T_k) booleans: may query i see key j?"""
    seen = np.ones((queries, keys), bool)
    for i in range(queries):
        for j in range(keys):
            near = (left is None or j >= i - left) and (right is None or j <= i + right)
            allowed = mask is None or np.broadcast_to(mask, (queries, keys))[i, j]
            seen[i, j] = near and allowed
    return seen


def attend(scores, values, seen):
    """Each query's softmax over the keys it sees, applied to the values; zeros if it sees none."""
    out = np.zeros((scores.shape[0], values.shape[1]))
    for i in range(scores.shape[0]):
        chosen = np.flatnonzero(seen[i])
        if chosen.size:
            weights = np.exp(scores[i, chosen] - scores[i, chosen].max())
            out[i] = weights / weights.sum() @ values[chosen]
    return out


def dot(q, k, v, scale, heads=1, seen=None, bias=None):
    """Dot-product attention of one sentence; `bias(head, distance)` is added to the scores."""
    seen = visible(len(q), len(k)) if seen is None else seen
    parts = zip(*[np.split(x, heads, axis=1) for x in (q, k, v)], strict=True)
    outputs = []
    for head, (a, b, c) in enumerate(parts):
        scores = scale * a @ b.T
        for i, j in np.ndindex(scores.shape if bias else (0, 0)):
            scores[i, j] += bias(head, j - i)
        outputs.append(attend(scores, c, seen))
    return np.concatenate(outputs, axis=1)


def additive(q, k, v, vector, seen=None):
    """Additive attention of one sentence."""
    seen = visible(len(q), len(k)) if seen is None else seen
    scores = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            scores[i, j] = vector @ np.tanh(q[i] + k[j])
    return attend(scores, v, seen)


def slope(function, arrays, directions, step=1e-6):
    """Central difference of a scalar function of arrays, along directions; float64."""
    ahead = function(*[a + step * d for a, d in zip(arrays, directions, strict=True)])
    behind = function(*[a - step * d for a, d in zip(arrays, directions, strict=True)])
    return (ahead - behind) / (2 * step)


def pack(lengths, width, seed, dtype=np.float64):
    """Random packed rows and their offsets."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    rows = np.random.default_rng(seed).standard_normal((offsets[-1], width))
    return rows.astype(dtype), offsets


def sentence(packed, offsets, k):
    """The rows of one sentence."""
    return packed[offsets[k] : offsets[k + 1]]


def differentiate(given, attend, dtype="float32"):
    """A graph of `attend(*xs)` for every sentence's arrays; the outputs' gradients are random.

    Returns:
        values (a list), gradients of all arrays (a list of lists), and the outputs' gradients.
    """
    rng = np.random.default_rng(99)
    with db.Graph(dtype=dtype) as graph:
        inputs = [[F.input(graph, x).keep() for x in xs] for xs in given]
        outputs = [attend(*xs).keep() for xs in inputs]
        weights = [rng.standard_normal(y.shape).astype(dtype) for y in outputs]
        losses = [F.sum(y * F.input(graph, w)) for y, w in zip(outputs, weights, strict=True)]
        graph.backward(F.sum(losses))
        gradients = [[x.gradient for x in xs] for xs in inputs]
        return [y.value for y in outputs], gradients, weights
