"""`dynbatch launch`: what ranks are given, what is printed of them, and how runs fail."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dynbatch.commands.main import main
from dynbatch.parallel import launcher
from dynbatch.parallel.environment import place_in_run
from dynbatch.parallel.guard import state_of
from dynbatch.parallel.launcher import copy_lines, environment_of_ranks
from dynbatch.parallel.run_log import RunLog

pytestmark = pytest.mark.slow

BEAT = "0.1"
"""Seconds, so that failures are noticed within the second."""


def launched(tmp_path, program, *arguments):
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "dynbatch", "launch", "-n", "2", "program.py", *arguments]
    environment = {**os.environ, "DYNBATCH_GUARD": BEAT, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1)


def test_ranks_get_their_place_and_their_share_of_processors():
    with closing(RunLog()) as log:
        given = environment_of_ranks(2, log, {"OMP_NUM_THREADS": "3"})
    assert [each["RANK"] for each in given] == [each["LOCAL_RANK"] for each in given] == ["0", "1"]
    for each in given:
        assert each["WORLD_SIZE"] == each["LOCAL_WORLD_SIZE"] == "2"
        assert each["MASTER_PORT"] == given[0]["MASTER_PORT"] and each["OMP_NUM_THREADS"] == "3"
        assert place_in_run(each).run == f"launch {os.getpid()}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-n", "0", "x.py"], r"error: -n 0\.(?s:.*)  fix:  -n 2 for two processes"),
        (["--nodes", "2", "x.py"], "options are gone(?s:.*)mpiexec -n 8 -hosts node1,node2 python"),
        (["-n", "2", "python", "x.py", "--lr", "3"], "leave python out: dynbatch launch -n 2 x.py"),
        (["/usr/bin/python3.12", "-m", "a"], "leave /usr/bin/python3.12 out: dynbatch launch -n 2"),
    ],
)
def test_a_wrong_command_is_told_with_its_fix(arguments, told, capfd):
    assert main(["launch", *arguments]) == 1
    assert re.search(told, capfd.readouterr().err)


def test_a_system_that_cannot_join_ranks_is_told_what_works_there(monkeypatch, capfd):
    monkeypatch.delattr(socket, "send_fds")
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["launch", "-n", "4", "x.py"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("error: on win32 dynbatch joins several processes by MPI alone.\n")
    assert "mpiexec -n 4 python program.py; one\n        process alone, python program.py" in told


def test_lines_are_printed_whole_and_bars_left_out():
    reading, writing = os.pipe()
    os.write(writing, b"one\r\n\r 10%|#   |\r100%|####|\ntw\xc3\xa4\n\r 5%|    |")
    os.close(writing)
    printed = io.StringIO()
    copy_lines(open(reading, "rb"), printed, "[1] ")
    assert printed.getvalue() == "[1] one\n[1] twä\n"


def test_a_call_that_holds_pythons_lock_is_no_failure(tmp_path):
    program = """
import ctypes, sys
import dynbatch as db
from dynbatch import parallel
with parallel.connect() as communicator:
    if communicator.rank == 1:
        ctypes.PyDLL(None).usleep(2_500_000)  # longer than any rank may be silent
    ranks = communicator.gather_objects(communicator.rank)
    print(ranks, sys.argv[1:])
"""
    out, err = launched(tmp_path, program, "--lr", "3").communicate(timeout=120)
    assert sorted(out.splitlines()) == ["[0, 1] ['--lr', '3']", "[1] [0, 1] ['--lr', '3']"], err


def test_a_killed_rank_ends_another_that_computes(tmp_path):
    program = """
import os, time
from dynbatch import parallel
with parallel.connect() as communicator:
    communicator.barrier()
    if communicator.rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(100)
"""
    run = launched(tmp_path, program)
    _, err = run.communicate(timeout=120)
    told = "error: rank 1 was killed by signal 9 (SIGKILL); the other was ended.\n"
    assert (run.returncode, err) == (128 + 9, told)


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        ("raise SystemExit", "rank 1 left the run, and rank 0 still waits for it; the other was"),
        ("os._exit(0)", "rank 1 ended without a word: "),
    ],
)
def test_a_rank_that_leaves_the_others_fails_whatever_its_exit_status(leave, told, tmp_path):
    program = f"""
import os
from dynbatch import parallel
communicator = parallel.connect()
communicator.barrier()
if communicator.rank == 1:
    {leave}
communicator.barrier()
"""
    run = launched(tmp_path, program)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert err.startswith(f"error: {told}"), err


def test_an_exception_is_printed_once_and_ends_the_others(tmp_path):
    program = """
import sys
from dynbatch import parallel
communicator = parallel.connect()
if communicator.rank == 1:
    raise ValueError("no such word")
communicator.barrier()
"""
    run = launched(tmp_path, program)
    _, err = run.communicate(timeout=120)
    *traceback, last, told = err.splitlines()
    assert run.returncode == 1
    assert last == "[1] ValueError: no such word"
    assert told == "error: rank 1 failed with exit status 1; the other was ended."
    assert traceback and all([line.startswith("[1] ") for line in traceback])


def test_a_rank_that_the_launcher_ended_is_not_taken_for_the_first(tmp_path, monkeypatch, capfd):
    """Whose guard tells of its end, while the first rank has closed its run before it failed."""
    program = """
import sys, time
from dynbatch import parallel
communicator = parallel.connect()
communicator.barrier()
if communicator.rank == 1:
    sys.exit(4)
time.sleep(100)
"""
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(launcher, "TERMINATE_SECONDS", 0.2)
    monkeypatch.setenv("DYNBATCH_GUARD", BEAT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert launcher.launch([sys.executable, str(tmp_path / "program.py")], 2) == 4
    told = "error: rank 1 failed with exit status 4; the other was ended.\n"
    assert capfd.readouterr().err == told


def test_a_rank_that_is_ended_while_it_waits_for_another_leaves_no_socket(monkeypatch):
    program = """
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "0":
    from dynbatch import parallel
    parallel.connect()
while not list(Path(os.environ["TMPDIR"]).glob("*/*-2-0")):
    time.sleep(0.01)
sys.exit(4)
"""
    monkeypatch.setattr(launcher, "TERMINATE_SECONDS", 0.1)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert launcher.launch([sys.executable, "-c", program], 2) == 4
        assert [list(each.iterdir()) for each in Path(folder).iterdir()] == [[]]


TRAINING = """
import os, sys
from dynbatch import models, optim, parallel, train
from dynbatch import nodes as F

def loss(graph, model, number):
    if trainer.step == 3 and communicator.rank == 1:
        os.kill(os.getpid(), int(sys.argv[1]))
    return F.sum(model(F.input(graph, [1.0, 2.0])))

communicator = parallel.connect()
model = models.Linear(2, 1, rng=0)
trainer = train.Trainer(
    model, optim.SGD(model, lr=0.1), loss, train.SentenceBatches(range(4), 2),
    checkpoint_path="model.safetensors", communicator=communicator, show_progress=False,
)
trainer.fit(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_trainer_that_one_rank_was_asked_to_end_says_which_without_a_traceback(number, tmp_path):
    run = launched(tmp_path, TRAINING, str(int(number)))
    _, err = run.communicate(timeout=120)
    saved, go_on, told = err.splitlines()
    assert saved == "Interrupted in epoch 2 after step 4: saved model.safetensors (step 4)."
    assert go_on.startswith("To go on: ")
    asked = f"rank 1 was asked to end by signal {int(number)} ({number.name})"
    assert told == f"error: {asked}; the other was ended."
    assert run.returncode == 128 + number


def test_a_frozen_rank_ends_another_without_the_launcher(tmp_path):
    program = """
import os, signal, time
from dynbatch import parallel
communicator = parallel.connect()
communicator.barrier()
if communicator.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    end = time.monotonic() + 60  # if this test is killed, nothing else may end it
    while time.monotonic() < end:
        pass
finally:
    print("unwound")
"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_PORT": port, "DYNBATCH_GUARD": BEAT}
    with ExitStack() as stack:
        ranks = []
        for rank in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", program], text=True, stdout=-1, stderr=-1,
                env={**environment, "RANK": str(rank)},
                start_new_session=True,  # or a SIGCONT to all of this test's processes wakes it
            )  # fmt: skip
            stack.callback(process.kill)
            ranks.append(process)
        told = [each.communicate(timeout=120) for each in ranks]
    assert [each.returncode for each in ranks] == [1, -signal.SIGKILL], told
    (out, err), others = told
    assert out == "unwound\n" and others == ("", "")
    assert err.startswith("error: rank 1 is frozen") and err.count("\n") == 1


def test_a_signal_that_comes_while_ranks_are_started_reaches_all(monkeypatch):
    start = launcher._Rank

    def start_late(*arguments):
        if arguments[0] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return start(*arguments)

    monkeypatch.setattr(launcher, "_Rank", start_late)
    program = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(20)"]
    assert launcher.launch(program, 2) == 128 + signal.SIGTERM


def test_ranks_end_when_the_launcher_is_killed(tmp_path):
    program = """
import os, time
from pathlib import Path
from dynbatch import parallel
communicator = parallel.connect()
if communicator.rank == 1:
    Path("pid").write_text(str(os.getpid()))
communicator.barrier()
if communicator.rank == 1:
    time.sleep(20)
end = time.monotonic() + 20
try:
    os.kill(os.getppid(), 9)
    while time.monotonic() < end:
        pass
finally:
    Path("unwound").touch()
"""
    run = launched(tmp_path, program)
    _, err = run.communicate(timeout=60)  # until rank 0, which has this standard error, has ended
    assert (run.returncode, err) == (
        -signal.SIGKILL, "error: `dynbatch launch` was killed, and its ranks end with it.\n"
    )  # fmt: skip
    assert (tmp_path / "unwound").exists()
    other, end = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while state_of(other) not in ("", "Z") and time.monotonic() < end:
        time.sleep(0.01)
    assert state_of(other) in ("", "Z")


def test_sigterm_goes_to_all_ranks_and_is_waited_for(tmp_path):
    program = """
import os, signal, sys, time
def end(number, frame):
    time.sleep(0.1)
    os.write(1, b"saved\\n")  # the signal may come while a print has not returned
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, end)
os.write(1, b"begun\\n")
time.sleep(100)
"""
    run = launched(tmp_path, program)
    assert sorted([run.stdout.readline(), run.stdout.readline()]) == ["[1] begun\n", "begun\n"]
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=120)
    assert (run.returncode, err) == (128 + signal.SIGTERM, "")
    assert sorted(out.splitlines()) == ["[1] saved", "saved"]
