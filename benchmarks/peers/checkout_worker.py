"""The process of another checkout: `checkout_worker.py ARGUMENTS`, run in that checkout's root.

It builds the workload that `benchmarks.run` would build with these arguments, says where its
dynbatch lies, and then answers requests, (method, batch), one after the other, all pickled.
"""

from __future__ import annotations

import os
import pickle
import sys

_answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever prints must not disturb the answers

import numpy as np  # noqa: E402

import dynbatch as db  # noqa: E402
from benchmarks.run import WORKLOADS, parse  # noqa: E402


def main() -> None:
    options = parse(sys.argv[1:])
    workload = WORKLOADS[options.workload]
    if options.hidden:
        workload = workload.with_hidden(options.hidden)
    if options.heads:
        workload = workload.with_heads(options.heads)
    db.set_num_threads(options.threads)
    rng = np.random.default_rng(options.seed)
    contender, _, _ = workload.build(rng, [], options.threads, "", options.device)
    answer(os.path.dirname(db.__file__))
    while True:
        try:
            method, batch = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer(getattr(contender, method)(batch))


def answer(value: object) -> None:
    pickle.dump(value, _answers)
    _answers.flush()


main()
