"""The calls for a machine with a card: what they ask for exists, and no end of theirs loses it."""

import os
import re
import signal
import subprocess

import pytest

from benchmarks.gpu.job import ROOT
from tests.benchmarks.gpu.parsing import parsed
from tests.cuda import simulator

CALLS = sorted((ROOT / "benchmarks" / "gpu" / "calls").glob("[0-9].sh"))
LIMIT_SECONDS = 590  # of one call
PARTS = re.compile(r'^part "([^"]+)" (\d+) ', re.MULTILINE)
each_call = pytest.mark.parametrize("call", CALLS, ids=lambda path: path.name)


def run(call, out, python, text):
    """Start a call with a Python that is a script of the shell."""
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    environment = os.environ | {"OUT": str(out), "PYTHON": str(python)}
    return subprocess.Popen(
        ["bash", call], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


@each_call
def test_every_command_is_there_and_accepts_its_arguments(tmp_path, call):
    asked, holds = tmp_path / "asked", tmp_path / "holds"
    asked.mkdir()
    # A file for each process: what holds the card runs beside the parts, and ends with them.
    note = f"""for word in "$@"; do printf '%s\\n' "$word"; done >{asked}/$$
    [ "$1" != -c ] || touch {holds}
    for turn in $(seq 1000); do [ -e {holds} ] && break; sleep 0.01; done"""
    with run(call, tmp_path / "out", tmp_path / "python", note) as running:
        said = running.stdout.read()
    assert running.returncode == 0, said
    commands = [path.read_text().splitlines() for path in asked.iterdir()]
    modules = [words for words in commands if words[0] == "-m"]
    assert len(modules) >= 2 and len(commands) - len(modules) == 1  # that which holds the card
    for _, module, *arguments in modules:
        if module == "benchmarks.gpu.machine":  # takes none
            assert not arguments
            continue
        options = parsed(module, arguments)
        assert all([(ROOT / path).exists() for path in getattr(options, "paths", ())])


@each_call
def test_the_parts_of_a_call_fit_into_its_time(call):
    text = call.read_text()
    parts = PARTS.findall(text)
    assert sum([int(seconds) for _, seconds in parts]) <= LIMIT_SECONDS
    assert len(parts) == len({name for name, _ in parts}) == text.count("\npart ")
    for line in text.splitlines():
        if "--limit" in line:
            assert int(PARTS.match(line)[2]) - int(line.split("--limit ")[1].split()[0]) >= 10


def test_a_call_that_is_killed_leaves_what_its_parts_had_told(tmp_path):
    out, pid = tmp_path / "out", tmp_path / "pid"
    tells = f"""[ "$2" = benchmarks.gpu.check ] || exit 0
    echo $$ >{pid}
    echo '{{"a": 1}}'
    exec sleep 600"""
    with run(CALLS[1], out, tmp_path / "python", tells) as running:
        while '{"a": 1}' not in (told := results(out)):
            pass
        os.killpg(running.pid, signal.SIGKILL)
        os.kill(int(pid.read_text()), signal.SIGKILL)  # in a group of its own, by `timeout`
    assert told == '== check\n{"a": 1}\n'
    assert "== check\n" in (out / "messages.txt").read_text()


def results(out):
    path = out / "results.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(simulator.missing()), reason=str(simulator.missing()))
@each_call
def test_a_call_runs_where_the_stand_in_is_the_card(tmp_path, call, stand_in_python):
    out = tmp_path / "out"
    environment = os.environ | {"OUT": str(out), "PYTHON": str(stand_in_python)}
    subprocess.run(["bash", call], env=environment, capture_output=True, check=True)
    told, messages = results(out), (out / "messages.txt").read_text()
    for name, _ in PARTS.findall(call.read_text()):
        if name != "tools":
            assert f"== {name}: status 0\n" in told, messages
    assert len(list(out.iterdir())) <= 8
