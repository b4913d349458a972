"""A recurrence whose state is a matrix, beside PyTorch: `python -m benchmarks.matrix_state`.

`F.gated_delta_rule` on 64 sentences of lognormal lengths (σ = 0.6), four heads of 64, forward and
all gradients, beside chunks of 64 tokens in PyTorch, padded and sentence by sentence. They take
turns, and must agree on the gradient of q.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

import dynbatch as db
from dynbatch.backend import spec_of
from dynbatch.kernels.attention import gated_delta_rule as kernels

HEADS, WIDTH, SENTENCES, CHUNK = 4, 64, 64, 64
LEAST = {(22, False): 12, (22, True): 16, (200, False): 3, (200, True): 7}  # times as fast

Run = Callable[[], Any]  # forward and backward; returns the gradient of q


def draw(mean: int, has_b: bool) -> tuple[list[int], list[Any]]:
    """Lengths, and rows of q, k, v, log a, b and of the gradient of the result."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(0, 0.6, SENTENCES)
    lengths = np.maximum(1, np.rint(lengths / lengths.mean() * mean)).astype(int)
    q, k, v, dy = rng.standard_normal((4, lengths.sum(), HEADS, WIDTH)).astype(np.float32)
    q, k = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)]
    log_a, b = rng.uniform(0, 1, (2, len(q), HEADS)).astype(np.float32)
    return lengths.tolist(), [q, k, v, -0.1 * log_a, b if has_b else None, dy]


def by_dynbatch(lengths: list[int], arrays: list[Any]) -> Run:
    """The node's kernels on the rows of all sentences, as a graph hands them over."""
    rows: list[Any] = [None if x is None else x.reshape(len(x), -1) for x in arrays]
    q, k, v, log_a, b, dy = rows
    x = kernels.DeltaInputs(q, k, v, log_a, b, np.cumsum([0, *lengths]))
    sizes, spec, out = x.sizes, spec_of(dy), np.empty_like(dy)
    errors = None if b is None else np.empty_like(dy)
    states = np.empty((HEADS * sum(kernels.kept_states(spec, sizes)), WIDTH**2), np.float32)
    wanted = kernels.DeltaGradients(*[None if row is None else np.empty_like(row) for row in x[:5]])
    rooms = kernels.workspace(spec, sizes, True), kernels.workspace_backward(spec, sizes)
    scratch = np.empty(max(rooms), np.float32)

    def run() -> Any:
        kernels.gated_delta_rule(x, out, errors, states, scratch)
        kernels.gated_delta_rule_backward(x, errors, states, dy, wanted, scratch)
        return wanted.q

    return run


def by_torch(lengths: list[int], arrays: list[Any], padded: bool) -> Run:
    """PyTorch's autograd through chunks, of one padded batch or of each sentence."""
    parts = [torch.split(torch.from_numpy(x), lengths) for x in arrays if x is not None]
    batches = [[x[None] for x in sentence] for sentence in zip(*parts, strict=True)]
    if padded:
        batches = [[pad_sequence(list(part), batch_first=True) for part in parts]]

    def run() -> Any:
        rows = []
        for *inputs, dy in batches:
            leaves = [x.detach().requires_grad_() for x in inputs]
            chunked(*leaves).backward(dy)
            rows += list(leaves[0].grad)
        return torch.cat([dq[:n] for dq, n in zip(rows, lengths, strict=True)]).flatten(1).numpy()

    return run


def chunked(q: Any, k: Any, v: Any, log_a: Any, *b: Any) -> Any:
    """Take (sentences, tokens, heads, width); without b, in the manner of `transformers`."""
    if b:
        return torch_chunk_gated_delta_rule(q * WIDTH**0.5, k, v, log_a, *b, CHUNK)[0]
    more = -q.shape[1] % CHUNK
    q, k, v = [pad(x.transpose(1, 2), (0, 0, 0, more)).unflatten(2, (-1, CHUNK)) for x in (q, k, v)]
    total = pad(log_a.transpose(1, 2), (0, more)).unflatten(2, (-1, CHUNK)).cumsum(-1)
    scores = (total[..., None] - total[..., None, :]).exp().tril() * (q @ k.mT)  # gates are mild
    q, k = q * total.exp()[..., None], k * (total[..., -1:] - total).exp()[..., None]
    state, outs = q.new_zeros(*q.shape[:2], WIDTH, WIDTH), []
    for c in range(q.shape[2]):
        outs.append(scores[:, :, c] @ v[:, :, c] + q[:, :, c] @ state)
        state = state * total[:, :, c, -1, None, None].exp() + k[:, :, c].mT @ v[:, :, c]
    return torch.cat(outs, 2)[:, :, : log_a.shape[1]].transpose(1, 2)


def compare(mean: int, has_b: bool, rounds: int) -> dict[str, Any]:
    """Milliseconds of each side, the least of all rounds, and the ratio to the best other."""
    lengths, arrays = draw(mean, has_b)
    padded, apart = by_torch(lengths, arrays, True), by_torch(lengths, arrays, False)
    runs = {"dynbatch": by_dynbatch(lengths, arrays), "padded": padded, "by sentence": apart}
    expected, ms = runs["dynbatch"]().copy(), dict.fromkeys(runs, np.inf)
    for turn in range(rounds * 10):
        for name, run in runs.items():
            if name == "dynbatch" or turn % 10 == 0:
                start = time.perf_counter()
                dq = run()
                ms[name] = min(ms[name], 1e3 * (time.perf_counter() - start))
                np.testing.assert_allclose(dq, expected, atol=1e-4)
    ratio = min(ms["padded"], ms["by sentence"]) / ms["dynbatch"]
    return {"mean": mean, "b": has_b, **ms, "ratio": ratio, "wanted": LEAST[mean, has_b]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix_state", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    db.set_num_threads(threads)
    torch.set_num_threads(threads)
    for mean, has_b in LEAST:
        print(", ".join([f"{x} {y:.3g}" for x, y in compare(mean, has_b, rounds=3).items()]))
