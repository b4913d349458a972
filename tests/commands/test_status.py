import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from dynbatch.commands.main import main
from dynbatch.commands.status import exit_status
from dynbatch.errors import DataError, ParallelError
from dynbatch.interrupts import terminable


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_the_exit_status_after_a_signal_is_128_and_its_number(number, status):
    def run():
        with terminable():
            signal.raise_signal(number)

    assert exit_status(run) == status


def test_the_exit_status_after_an_error_is_1_and_otherwise_0(capsys):
    def fail():
        raise DataError("line 3: wrong")

    assert (exit_status(lambda: None), exit_status(fail)) == (0, 1)
    assert capsys.readouterr().err == "error: line 3: wrong\n"


def test_an_error_of_another_rank_is_printed_by_one(monkeypatch, capsys):
    def run():
        raise ParallelError("rank 1 was killed.", rank=1)

    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("MASTER_PORT", "1")
    for rank, told in [("0", "error: rank 1 was killed.\n"), ("2", "")]:
        monkeypatch.setenv("RANK", rank)
        assert exit_status(run) == 1
        assert capsys.readouterr().err == told
    monkeypatch.setenv("DYNBATCH_REPORT", "9")  # dynbatch launch says it
    monkeypatch.setenv("RANK", "0")
    assert exit_status(run) == 1
    assert capsys.readouterr().err == ""


def test_a_lack_of_memory_is_told_with_its_fix(capsys):
    def run():
        raise MemoryError("Unable to allocate 37.3 GiB")

    assert exit_status(run) == 1
    told = "error: there is not enough memory: Unable to allocate 37.3 GiB.\n  fix:  give smaller"
    assert capsys.readouterr().err.startswith(told)


ARGUMENTS = [["--version"], ["nodes"], ["plot", "--help"]]
needs_full_disk = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="there is no /dev/full"
)


def ended(arguments, output, unbuffered):
    """The exit status of the command where standard output goes to a file descriptor."""
    raw = open(output, "wb", buffering=0)
    buffered = raw if unbuffered else io.BufferedWriter(raw)
    with io.TextIOWrapper(buffered, write_through=unbuffered) as stream, redirect_stdout(stream):
        return main(arguments)


@needs_full_disk
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_full_disk_behind_standard_output_is_named(arguments, unbuffered, capsys):
    assert ended(arguments, "/dev/full", unbuffered) == 1
    message = "error: [Errno 28] No space left on device: 'standard output'\n"
    assert capsys.readouterr().err == message


def test_a_file_gets_utf_8_whatever_the_code_page(tmp_path):
    """Windows' would refuse what `dynbatch generate --help` prints."""
    with open(tmp_path / "file", "w", encoding="cp1252") as stream, redirect_stdout(stream):
        assert exit_status(lambda: print("Σ log p, 文")) == 0
    assert (tmp_path / "file").read_text("utf-8") == "Σ log p, 文\n"


@pytest.fixture
def unread():
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_where_nobody_reads_what_is_printed_nothing_is_said(
    arguments, unbuffered, unread, capsys, monkeypatch
):
    monkeypatch.delattr(signal, "SIGPIPE")  # as on Windows
    assert ended(arguments, unread, unbuffered) == 141
    assert capsys.readouterr().err == ""


def command(output):
    """`dynbatch plot --help` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dynbatch", "plot", "--help"], stdout=output,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip


@needs_full_disk
def test_python_does_not_complain_of_a_full_disk_once_more_at_its_end():
    with open("/dev/full", "w") as full:
        run = command(full)
    message = "error: [Errno 28] No space left on device: 'standard output'\n"
    assert (run.returncode, run.stderr) == (1, message)


def test_python_does_not_complain_of_a_missing_reader_at_its_end(unread):
    run = command(unread)
    os.close(unread)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, "")
