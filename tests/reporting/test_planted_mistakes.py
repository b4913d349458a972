"""Mistakes of users are named with their fix on the first lines, and sound programs are let be."""

import inspect
import warnings
from types import SimpleNamespace

import pytest

import dynbatch as db
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.runtime.parallel import num_processors
from dynbatch.reporting import last_graphs, unbatched, work_rules
from dynbatch.train import advisor
from tests.reporting import programs
from tests.reporting.programs import MISTAKES, SOUND

LINES = 5

PLANTED = [(name, mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.fixture(autouse=True)
def as_a_process_begins(monkeypatch, same_threads):
    now = [0.0]
    clock = SimpleNamespace(
        perf_counter=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(advisor, "time", clock)
    monkeypatch.setattr(programs, "time", clock)
    monkeypatch.setattr(unbatched, "_warned", False)
    last_graphs.forget()
    monkeypatch.setattr(library, "reason", lambda: "")
    db.set_num_threads(num_processors())


def told(program, capsys):
    """The warnings; and the first lines of the report, or of the advice, as one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        takes_capture = inspect.signature(program).parameters
        said = program(lambda: capsys.readouterr().err) if takes_capture else program()
    text = said.explain() if isinstance(said, db.Graph) else said
    said = [str(warning.message) for warning in caught]
    return said, " ".join(" ".join(text.splitlines()[:LINES]).split())


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param(
            *pair, id=pair[1].program.__name__, marks=[pytest.mark.cuda] * ("device" in pair[0])
        )
        for pair in PLANTED
    ],
)
def test_a_mistake_is_named_with_its_fix(name, mistake, capsys, monkeypatch, request):
    if name == "no compiler":
        monkeypatch.setattr(library, "reason", lambda: "there is no C compiler")
    if name == "one thread idle":
        monkeypatch.setattr(work_rules, "own_processors", lambda: 4)
        db.set_num_threads(1)
    if "device" in name:
        request.getfixturevalue("cuda")
    caught, text = told(mistake.program, capsys)
    begin = " 1. " if text.startswith("what to change") else "stands out: "
    cause, _, fix = text.partition(begin)[2].partition(" fix: ")
    assert mistake.cause in cause and mistake.fix in fix
    assert all([mistake.cause in warning and mistake.fix in warning for warning in caught])


def test_twenty_mistakes_are_planted():
    assert len(MISTAKES) == 20


@pytest.mark.parametrize("program", SOUND)
def test_a_sound_program_is_let_be(program, capsys):
    caught, text = told(program, capsys)
    assert not caught and "stands out: " not in text
    assert not [mistake.cause for _, mistake in PLANTED if mistake.cause in text]
