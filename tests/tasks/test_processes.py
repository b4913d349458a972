"""`dynbatch train` in two processes that a launcher started: they train as one."""

import os
import socket
import subprocess
import sys

import pytest

from dynbatch.train import read_metrics


def started(folder, rank=None, port=0):
    """`dynbatch train` on a file of the folder, as a rank of two or alone."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    output = folder / ("alone" if rank is None else "together")
    command = [
        sys.executable, "-m", "dynbatch", "train", str(folder / "labels.tsv"), "--epochs", "2",
        "--output", str(output), "--quiet", "--threads", "1",
    ]  # fmt: skip
    return subprocess.Popen(
        command, env={**os.environ, **({} if rank is None else place)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.exhaustive
def test_two_processes_train_as_one_and_the_first_tells(tmp_path):
    lines = [f"{'good' if k % 3 else 'bad'}\tthe film {k % 7} was so {k % 3}\n" for k in range(80)]
    (tmp_path / "labels.tsv").write_text("".join(lines))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = [started(tmp_path), *[started(tmp_path, rank, port) for rank in range(2)]]
    told = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], told
    (alone, _), (first, _), (second, errors) = told
    assert "2 processes, each 1 threads" in first
    assert len(first.splitlines()) == len(alone.splitlines())
    assert (second, errors) == ("", "")
    one, two = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("alone", "together")]
    assert [line.get("loss") for line in two] == [
        pytest.approx(line["loss"], rel=1e-3) if "loss" in line else None for line in one
    ]
