"""The guard of a rank, tick by tick: who is lost, who is frozen, and who is ended by force."""

import os

import pytest

from dynbatch.errors import ParallelError
from dynbatch.parallel import guard as guards
from dynbatch.parallel.guard import (
    BEAT_SECONDS,
    FROZEN_TICKS,
    GRACE_TICKS,
    RAISE_TICKS,
    UNWINDING_TICKS,
    RankGuard,
    beat_seconds,
    state_of,
)
from dynbatch.parallel.run_log import (
    ENDED,
    FAILED,
    FROZEN,
    LAUNCHER,
    LEFT,
    LOST,
    REPORT,
    RunLog,
    tell_launcher,
)

PIDS = {0: 100, 1: 101, 2: 102}


class Guarded:
    """The guard of rank 1, a log, and what it does: processes it kills, errors it raises."""

    def __init__(self, monkeypatch, log):
        self.log, self.killed, self.raised, self.interrupted = log, [], [], []
        self.states = dict.fromkeys(PIDS.values(), "R")
        monkeypatch.setattr(guards, "kill", self.killed.append)
        monkeypatch.setattr(guards, "_raise_in_main_thread", lambda *each: self.raised.append(each))
        self.guard = RankGuard(1, PIDS, log, 0.5, lambda *each: self.interrupted.append(each))

    def tick(self, count=1):
        for _ in range(count):
            self.guard.tick(self.states.get)


@pytest.fixture
def log():
    log = RunLog()
    yield log
    log.close()


@pytest.fixture
def guarded(monkeypatch, log):
    monkeypatch.delenv(REPORT, raising=False)
    return Guarded(monkeypatch, log)


MESSAGE = "rank 2 failed: ValueError: no such word"


def test_a_rank_that_is_stopped_is_frozen_and_ended(guarded):
    for state, count in (("T", FROZEN_TICKS - 1), ("R", 1), ("T", FROZEN_TICKS - 1)):
        guarded.states[102] = state
        guarded.tick(count)
    assert guarded.log.failure() is None
    guarded.tick()
    kind, rank, message = guarded.log.failure()
    assert (kind, rank, guarded.killed) == (FROZEN, 2, [102])
    assert message == "rank 2 is frozen: its process 102 is stopped (SIGSTOP) since 3 s."
    assert guarded.interrupted == [(message, 2)]


def test_of_ranks_that_mpi_joins_only_a_stopped_one_is_ended(monkeypatch, capfd):
    guarded = Guarded(monkeypatch, None)
    guarded.states[102] = "Z"  # MPI itself notices that
    guarded.tick(5)
    guarded.states[102] = "T"
    guarded.tick(FROZEN_TICKS)
    assert (guarded.killed, guarded.interrupted) == ([102], [])
    assert capfd.readouterr().err.startswith("error: rank 2 is frozen: its process 102 is stopped")


def test_a_rank_that_is_busy_is_not(guarded):
    guarded.tick(1000)
    assert guarded.log.failure() is None


@pytest.mark.parametrize("state", ["", "Z"])
def test_a_rank_that_ends_without_a_word_is_told_of(state, guarded):
    guarded.states[102] = state
    guarded.tick()
    assert guarded.log.failure()[:2] == (LOST, 2)
    assert guarded.log.failure().message.startswith("rank 2 ended without a word: its process 102")


def test_one_that_left_in_order_is_not_and_the_next_one_is_looked_after(guarded):
    guarded.log.add(LEFT, 2)
    guarded.states[102] = ""
    guarded.tick(3)
    assert guarded.log.failure() is None
    guarded.states[100] = "Z"
    guarded.tick()
    assert guarded.log.failure()[:2] == (LOST, 0)


def test_one_that_leaves_and_ends_while_the_guard_looks_is_not(guarded):
    def ends(pid):
        guarded.log.add(LEFT, 2)
        return ""

    guarded.guard.tick(ends)
    assert guarded.log.failure() is None


def test_a_rank_that_does_not_hear_of_a_failure_is_ended(guarded, capfd):
    guarded.log.add(FAILED, 0, MESSAGE)
    guarded.log.add(FAILED, 2, "the first failure counts")
    guarded.tick(RAISE_TICKS)
    assert (guarded.interrupted, guarded.raised) == ([(MESSAGE, 0)], [])
    guarded.tick()
    assert guarded.raised == [(MESSAGE, 0)]
    guarded.tick(GRACE_TICKS - RAISE_TICKS - 1)
    assert guarded.killed == []
    guarded.tick()
    assert guarded.killed == [os.getpid()]
    assert capfd.readouterr().err == f"error: {MESSAGE}\n"  # the lowest of the others tells


@pytest.mark.parametrize("is_asked", [False, True])
def test_it_gets_more_time_where_it_has_heard_or_all_were_asked_to_end(is_asked, guarded):
    guarded.log.add(ENDED if is_asked else FAILED, 2, MESSAGE)
    if not is_asked:
        guarded.guard.taken()
    guarded.tick(UNWINDING_TICKS)
    assert guarded.killed == guarded.raised == []
    guarded.tick()
    assert guarded.killed == [os.getpid()]


def test_the_rank_that_failed_ends_by_itself(guarded):
    guarded.log.add(FAILED, 1, MESSAGE)
    guarded.tick(2 * UNWINDING_TICKS)
    assert guarded.killed == guarded.raised == guarded.interrupted == []


def test_a_failure_that_a_full_disk_keeps_out_of_the_log_is_one(guarded, monkeypatch):
    monkeypatch.setattr(RunLog, "add", lambda *_: None)
    guarded.states[102] = ""
    guarded.tick()
    assert [rank for _, rank in guarded.interrupted] == [2]


@pytest.mark.parametrize("is_gone_before", [False, True])
def test_without_its_launcher_a_rank_is_ended_as_after_a_lost_one(is_gone_before, monkeypatch, log):
    monkeypatch.setenv(REPORT, "9 77")
    guarded = Guarded(monkeypatch, log)
    guarded.states[77] = "S"
    guarded.tick()  # its parent is another process, which the launcher has started
    assert log.failure() is None
    if is_gone_before:  # the rank has connected
        guarded = Guarded(monkeypatch, log)
    guarded.states[77] = ""
    guarded.tick()
    assert log.failure()[:2] == (LOST, LAUNCHER)
    assert log.failure().message.startswith("`dynbatch launch` was killed")
    guarded.tick(GRACE_TICKS)
    assert guarded.killed == [os.getpid()]


def test_a_log_is_written_only_where_the_launcher_has_opened_it(monkeypatch, log, tmp_path):
    monkeypatch.setenv(REPORT, f"{log.descriptor} 1")
    tell_launcher("all end", 1)
    assert log.entries() == [("asked", 1, "all end")] and log.failure() is None
    with open(tmp_path / "another", "wb") as other:
        monkeypatch.setenv(REPORT, f"{other.fileno()} 1")
        tell_launcher("all end", 1)
    assert (tmp_path / "another").read_bytes() == b""


def test_the_state_of_a_process_is_a_letter():
    assert state_of(os.getpid()) in "RSD"


def test_the_environment_sets_the_beat():
    assert beat_seconds({}) == BEAT_SECONDS
    assert beat_seconds({"DYNBATCH_GUARD": "0"}) == 0
    with pytest.raises(ParallelError, match="DYNBATCH_GUARD is 'often'"):
        beat_seconds({"DYNBATCH_GUARD": "often"})
