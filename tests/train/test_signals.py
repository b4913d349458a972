"""Signals at random times: the program is told of each, and training goes on after it."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.marks import exhaustive

LETTERS = {signal.SIGINT: "I", signal.SIGTERM: "T"}


def told(process, seconds=30):
    """The next letter of a process; "" if it says nothing for so long, or has ended."""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return os.read(process.stdout.fileno(), 1).decode() if ready else ""


@pytest.mark.parametrize(
    ("count", "seed"), [(20, 0), *[exhaustive(500, seed) for seed in range(1, 6)]]
)
@pytest.mark.parametrize("kind", ["loop", "fit"])
def test_no_signal_is_swallowed(tmp_path, kind, count, seed):
    draws = random.Random(seed)
    command = [sys.executable, "-m", "tests.train.signalled", kind, str(tmp_path)]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        assert told(process, 120) == "R"
        for number in range(count):
            time.sleep(draws.expovariate(1 / 0.004))
            sent = draws.choice(list(LETTERS))
            process.send_signal(sent)
            assert told(process) == LETTERS[sent], f"signal {number}, {sent!r}"
