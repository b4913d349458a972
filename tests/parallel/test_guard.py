"""The guard of a rank, tick by tick: who is lost, who is frozen, and who is ended by force."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel.guard import BEAT_SECONDS, beat_seconds
from dynbatch.parallel.guard_process import (
    FROZEN_TICKS,
    GRACE_TICKS,
    LAUNCHER,
    SILENT_TICKS,
    UNWINDING_TICKS,
    GuardProcess,
    Line,
    state_of,
)


class Guarded:
    """The guard of rank 1, with the ends of its sockets, and a process that may be ended."""

    def __init__(self):
        self.rank = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=-1)
        parent, own = socket.socketpair()
        other, link = socket.socketpair()
        self.parent, self.other = Line(1, parent), Line(0, other)
        self.guard = GuardProcess(1, self.rank.pid, 0.5, own, {0: link})
        self.sockets = (parent, own, other, link)
        self.heard = {self.parent: [], self.other: []}

    def tick(self, count=1, state="R", is_beating=True):
        for _ in range(count):
            if is_beating:
                self.hear({"kind": "beat"})
            self.guard.tick(lambda pid: state, self.rank.pid)
            self.told(self.other)  # or the socket would be full of beats

    def hear(self, message, of=None):
        """Let the guard read a message: from the guard of rank 0, or from its own rank."""
        (of or self.other).send(message)
        self.guard._read(self.guard.parent if of is self.parent else self.guard.guards[0])

    def told(self, line):
        """Messages of the guard, without beats."""
        line.socket.setblocking(False)
        self.heard[line] += [each for each in line.read() if each["kind"] != "beat"]
        return self.heard[line]


@pytest.fixture
def guarded():
    one = Guarded()
    yield one
    for each in one.sockets:
        each.close()
    one.rank.kill()
    one.rank.communicate()


FAILED = {"kind": "failed", "rank": 2, "message": "rank 2 failed: ValueError: no such word"}


def test_a_rank_that_is_stopped_is_frozen(guarded):
    guarded.tick(FROZEN_TICKS - 1, "T")
    guarded.tick(1, "R")
    guarded.tick(FROZEN_TICKS - 1, "T")
    assert guarded.guard.verdict is None
    guarded.tick(1, "T")
    (told,) = guarded.told(guarded.other)
    assert (told["kind"], told["rank"]) == ("frozen", 1)
    assert "rank 1 is frozen" in told["message"] and "(SIGSTOP) since 3 s" in told["message"]
    guarded.tick(GRACE_TICKS, "T")
    assert guarded.rank.wait(10) == -signal.SIGKILL


def test_a_rank_that_is_busy_is_not(guarded):
    guarded.tick(1000)
    assert guarded.guard.verdict is None


def test_a_machine_that_is_silent_is_lost(guarded):
    guarded.tick(SILENT_TICKS, is_beating=False)
    guarded.tick(1)
    guarded.tick(SILENT_TICKS - 1, is_beating=False)
    assert guarded.guard.verdict is None
    guarded.tick(1, is_beating=False)
    assert [each["rank"] for each in guarded.told(guarded.parent)] == [0]


def test_a_rank_that_ends_without_a_word_is_told_of(guarded):
    guarded.sockets[0].close()
    guarded.guard._read(guarded.guard.parent)
    assert guarded.guard.is_done
    (told,) = guarded.told(guarded.other)
    assert told["rank"] == 1 and "rank 1 ended without a word" in told["message"]


def test_so_is_one_whose_child_holds_its_socket(guarded):
    guarded.guard.tick(lambda pid: "", parent=1)
    assert guarded.guard.is_done and guarded.guard.verdict["rank"] == 1


def test_a_rank_that_leaves_in_order_is_not(guarded):
    guarded.hear({"kind": "bye"}, of=guarded.parent)
    assert guarded.guard.is_done and guarded.guard.verdict is None
    assert guarded.told(guarded.other) == [{"kind": "bye"}]


def test_another_rank_may_leave_in_order_too(guarded):
    guarded.hear({"kind": "bye"})
    guarded.tick(2 * SILENT_TICKS, is_beating=False)
    assert guarded.guard.verdict is None and not guarded.guard.is_done


def test_a_rank_that_does_not_hear_of_a_failure_is_ended(guarded):
    guarded.hear(FAILED)
    assert guarded.told(guarded.parent) == [FAILED]
    guarded.tick(GRACE_TICKS - 1)
    assert guarded.rank.poll() is None
    guarded.tick()
    assert guarded.rank.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("is_asked", [False, True])
def test_it_gets_more_time_where_it_has_heard_or_all_were_asked_to_end(is_asked, guarded):
    guarded.hear({**FAILED, "kind": "ended" if is_asked else "failed"})
    if not is_asked:
        guarded.hear({"kind": "taken"}, of=guarded.parent)
    guarded.tick(UNWINDING_TICKS - 1)
    assert guarded.rank.poll() is None
    guarded.tick()
    assert guarded.rank.wait(10) == -signal.SIGKILL


def test_the_rank_that_failed_ends_by_itself(guarded):
    guarded.hear({**FAILED, "rank": 1}, of=guarded.parent)
    guarded.hear(FAILED)  # the first verdict counts
    guarded.tick(2 * UNWINDING_TICKS)
    assert guarded.rank.poll() is None and guarded.guard.verdict["rank"] == 1


def test_the_launcher_can_read_who_failed(guarded):
    reading, guarded.guard.report = os.pipe()
    guarded.hear(FAILED)
    os.close(guarded.guard.report)
    with open(reading) as report:
        assert json.loads(report.read()) == FAILED


def test_without_its_launcher_a_rank_is_ended_as_after_a_lost_one(guarded, capfd):
    guarded.guard.rank = 0  # whose guard speaks
    reading, guarded.guard.report = os.pipe()
    guarded.tick()
    assert guarded.guard.verdict is None
    os.close(reading)
    guarded.tick()
    for line in (guarded.parent, guarded.other):
        (told,) = guarded.told(line)
        assert (told["kind"], told["rank"]) == ("lost", LAUNCHER)
        assert told["message"].startswith("`dynbatch launch` was killed")
    guarded.tick(GRACE_TICKS - 1)
    assert guarded.rank.wait(10) == -signal.SIGKILL
    assert capfd.readouterr().err == f"error: {told['message']}\n"
    os.close(guarded.guard.report)


def test_it_reads_a_whole_line_of_an_error_however_long(guarded):
    """A pipe keeps what one process writes together up to PIPE_BUF bytes."""
    reading, guarded.guard.report = os.pipe()
    guarded.hear({**FAILED, "message": "\N{SNOWMAN}" * 10_000})
    os.close(guarded.guard.report)
    with open(reading, "rb") as report:
        line = report.read()
    assert len(line) <= 4096
    assert json.loads(line) == {**FAILED, "message": "\N{SNOWMAN}" * 300}


def test_the_state_of_a_process_is_a_letter():
    assert state_of(os.getpid()) in "RSD"


def test_the_environment_sets_the_beat():
    assert beat_seconds({}) == BEAT_SECONDS
    assert beat_seconds({"DYNBATCH_GUARD": "0"}) == 0
    with pytest.raises(ParallelError, match="DYNBATCH_GUARD is 'often'"):
        beat_seconds({"DYNBATCH_GUARD": "often"})
