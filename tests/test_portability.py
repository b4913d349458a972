"""Systems that lack Linux's functions: importing, training and the command need none of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynbatch import indexing
from dynbatch.indexing import narrowed
from dynbatch.kernels.runtime.parallel import num_processors

PROGRAM = """
import sys
import numpy as np, safetensors.numpy, tqdm                       # others find what they know
import asyncio, concurrent.futures, multiprocessing, shutil, subprocess, tempfile

for place in sys.argv[1:]:
    module, name = place.split(".")
    if name == "*":
        sys.modules[module] = None
    else:
        vars(__import__(module)).pop(name, None)

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.commands.main import main

def trainer():
    return train.Trainer(
        model, optim.Adam(model), lambda graph, model, x: F.sum(model(F.input(graph, x))),
        train.SentenceBatches(np.ones((4, 2, 3)), batch_size=2), checkpoint_path="run.safetensors",
        metrics_path="metrics.jsonl", show_progress=False, advise_after=1,
    )

model = models.LSTM(3, 2)
trainer().fit(1)
resumed = trainer()
assert resumed.resume() and resumed.fit(2).step == 4
with db.Graph() as graph:
    F.sum(model(F.input(graph, np.ones((2, 3))))).backward()
    assert "lower bound" in graph.explain()
pairs = models.Seq2Seq(9, 9, embed=4, hidden=4, rng=0)
with db.Graph() as graph:
    graph.backward(F.sum([pairs.loss(graph, [5, 6, 7][:n], [4, 5, 6]) for n in (1, 3)]))
optim.Adam(pairs).step()
train.save_checkpoint("pairs.safetensors", pairs)
train.load_checkpoint("pairs.safetensors", pairs)
best, = db.generate(pairs.eval(), [[5, 6]], max_new_tokens=3, num_beams=2)
assert len(best[0].tokens) <= 3
open("poem.txt", "w", encoding="utf-8").write("ab ab\\n\\nab ba\\n" * 20)
small = "--task language-model --epochs 1 --width 8 --layers 1 --heads 1 --quiet"
assert main(["train", "poem.txt", *small.split()]) == 0
print(db.num_threads(), "threads")
"""

ON_LINUX = """
os.sched_getaffinity os.sched_setaffinity os.sched_getscheduler os.sched_getparam os.memfd_create
os.posix_fallocate os.posix_fadvise os.pidfd_open os.eventfd os.splice os.copy_file_range
os.getrandom os.getxattr os.setxattr os.O_TMPFILE os.O_DIRECT os.O_PATH signal.sigwaitinfo
signal.sigtimedwait signal.pidfd_send_signal select.epoll socket.AF_NETLINK socket.SOCK_CLOEXEC
socket.SOCK_NONBLOCK socket.SO_PEERCRED
""".split()
"""What is on Linux, and not on macOS."""

ON_POSIX = """
os.fork os.register_at_fork os.geteuid os.getuid os.getgid os.killpg os.setsid os.getpgid
os.setpgid os.getpgrp os.sysconf os.fchmod os.chown os.set_blocking os.get_blocking os.statvfs
os.uname os.waitid os.wait os.wait4 os.WNOHANG os.mkfifo os.getloadavg os.nice os.sync os.fdatasync
os.pread os.pwrite os.lockf os.O_NONBLOCK os.O_NOCTTY os.O_CLOEXEC os.O_DIRECTORY os.posix_spawn
os.confstr os.sched_yield signal.SIGHUP signal.SIGKILL signal.SIGQUIT signal.SIGALRM
signal.SIGUSR1 signal.SIGUSR2 signal.SIGCHLD signal.SIGPIPE signal.SIGTSTP signal.SIGCONT
signal.SIGSTOP signal.SIGWINCH signal.pthread_sigmask signal.pthread_kill signal.setitimer
signal.alarm signal.sigwait signal.SIG_BLOCK signal.SIG_SETMASK signal.SIG_UNBLOCK select.poll
socket.AF_UNIX time.clock_gettime time.tzset time.CLOCK_MONOTONIC time.CLOCK_PROCESS_CPUTIME_ID
fcntl.* resource.* termios.* pwd.* grp.* pty.* tty.* posix.*
""".split()
"""What is on macOS, too, and not on Windows."""


@pytest.mark.parametrize(
    ("absent", "native"),
    [
        pytest.param(ON_LINUX, "1", id="macOS"),
        # NumPy alone: Python on Windows starts compilers by functions of its own.
        pytest.param([*ON_LINUX, *ON_POSIX], "0", id="Windows"),
    ],
)
def test_nothing_that_linux_alone_has_is_needed_for_training(tmp_path, absent, native):
    environment = {**os.environ, "DYNBATCH_NATIVE": native, "PYTHONPATH": os.pathsep.join(sys.path)}
    strict = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]  # Windows has its own
    ended = subprocess.run(
        [sys.executable, *strict, "-c", PROGRAM, *absent], cwd=tmp_path, env=environment, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(f"{os.cpu_count()} threads\n")


def test_processors_are_those_that_the_process_may_use_where_the_system_tells(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 5}, raising=False)
    assert num_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert num_processors() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_processors() == 1


# Functions that refuse counts and indices of int64 where a processor, or a browser, has 32 bits.
REFUSING = re.compile(r"\bnp\.(bincount|repeat|take|put|choose)\(")


def test_counts_and_indices_are_narrowed_where_numpy_refuses_64_bits():
    assert narrowed(np.arange(3, dtype="int16")).dtype == np.intp
    package = Path(indexing.__file__).parent
    for path in package.rglob("*.py"):
        if not {"c", "cuda"} & {*path.parts} and path.name != "indexing.py":
            assert not REFUSING.search(path.read_text("utf-8")), f"{path}: see dynbatch.indexing"
