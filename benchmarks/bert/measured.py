"""One training step that really runs: `python -m benchmarks.bert.measured`, a process of its own.

The growth of the process is that of its resident memory, from before the model is made to the most
that it ever was; Python, NumPy and the libraries were there before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dynbatch as db
from benchmarks.bert.estimates import estimate, mean_loss
from benchmarks.bert.examples import examples
from dynbatch import optim
from dynbatch.models.pretrained.bert import BertConfig
from dynbatch.models.pretrained.bert_heads import BertForMaskedWords


def resident(name: str = "VmRSS") -> int:
    """Bytes of this process in memory; with "VmHWM" the most there ever were. Linux only."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return 1024 * int(line.split()[1])


def step(config: BertConfig, lengths: Sequence[int], threads: int) -> dict[str, Any]:
    """Estimate a step, run it, and say what it took."""
    db.set_num_threads(threads)
    before = resident()
    model = BertForMaskedWords(config, rng=1)
    adam = optim.Adam(model.parameters(), lr=1e-4)
    expected = estimate(model, lengths)
    batch = examples(lengths, config)
    begin = time.perf_counter()
    with db.Graph(seed=0) as graph:
        loss = mean_loss(model, graph, batch)
        graph.backward(loss)
        arena = graph.peak_bytes
    adam.step()
    return {
        "sentences": len(lengths),
        "tokens": expected.tokens,
        "loss": float(loss.value),
        "seconds": round(time.perf_counter() - begin, 1),
        "estimated_bytes": expected.total,
        "estimated_arena_bytes": expected.arena,
        "arena_bytes": arena,
        "process_bytes": resident("VmHWM") - before,
    }


def in_a_process(sizes: dict[str, int], lengths: Sequence[int], threads: int) -> dict[str, Any]:
    """The result of `step` in a process that holds nothing else.

    Args:
        sizes: fields of the model's `BertConfig`.
    """
    given = {"sizes": sizes, "lengths": list(lengths), "threads": threads}
    command = [sys.executable, "-m", "benchmarks.bert.measured", json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("given", type=json.loads, help="sizes, lengths and threads, as JSON")
    given = parser.parse_args().given
    print(json.dumps(step(BertConfig(**given["sizes"]), given["lengths"], given["threads"])))
