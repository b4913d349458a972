"""TensorBoard's event files, read back by a reader of their own with its own checksums."""

import builtins
import struct

import numpy as np
import pytest

from dynbatch import nodes as F
from dynbatch import optim, random
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.train import SentenceBatches, Trainer, read_metrics
from dynbatch.train.event_files import EventFiles

protocol = pytest.importorskip(
    "tensorboardX.proto.event_pb2", reason="event files need tensorboardX"
)

EXAMPLES = [np.random.default_rng(i).integers(0, 9, 1 + i % 4) for i in range(12)]


class Model(Module):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.table = Parameter(rng.standard_normal((9, 5)).astype(np.float32))


def trainer_of(folder, loss=None, **settings):
    model = Model()

    def usual(graph, model, words):
        return F.cross_entropy(F.lookup(graph, model.table, words), words % 5, reduction="sum")

    return Trainer(
        model, optim.Adam(model, lr=0.01), loss or usual, SentenceBatches(EXAMPLES, batch_size=3),
        num_tokens=len, validate=lambda model: float(np.abs(model.table.value).mean()),
        metrics_path=folder / "metrics.jsonl", checkpoint_path=folder / "run.safetensors",
        checkpoint_every=3, watch=2, show_progress=False, **settings,
    )  # fmt: skip


def crc32c(data):
    """The CRC of Castagnoli's polynomial, bit by bit, masked as TFRecords have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read(folder):
    """Every (step, tag, value) of all files, in order."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, events = path.read_bytes(), []
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            data, content_after = content[12 : 12 + length], content[16 + length :]
            sums = content[8:12] + content[12 + length : 16 + length]
            assert struct.unpack("<II", sums) == (crc32c(content[:8]), crc32c(data))
            events.append(protocol.Event.FromString(data))
            content = content_after
        assert events[0].file_version == "brain.Event:2"
        for event in events[1:]:
            found += [(event.step, each.tag, each.simple_value) for each in event.summary.value]
    return found


def test_event_files_have_the_numbers_of_the_metrics_file(tmp_path):
    trainer_of(tmp_path, tensorboard=tmp_path / "board").fit(2)
    found = {(step, tag): value for step, tag, value in read(tmp_path / "board")}
    records = read_metrics(tmp_path / "metrics.jsonl")
    for record in records:
        step = record["step"]
        if "loss" in record:
            assert found[step, "train/loss"] == pytest.approx(record["loss"])
            assert found[step, "train/lr"] == pytest.approx(0.01)
            assert found[step, "memory/peak_bytes"] == record["peak_bytes"]
            speed = record["sentences_per_second"] * record["tokens"] / 3
            assert found[step, "speed/tokens_per_second"] == pytest.approx(speed)
        elif "metric" in record:
            assert found[step, "validation/metric"] == pytest.approx(record["metric"])
        else:
            statistics = record["parameters"]["table"]
            for name, value in statistics.items():
                assert found[step, f"{name}/table"] == pytest.approx(value)
    assert sum(tag == "train/loss" for _, tag in found) == 8
    assert sum(tag == "update_ratio/table" for _, tag in found) == 4


def test_named_metrics_have_their_names_in_event_files(tmp_path):
    trainer = trainer_of(tmp_path, tensorboard=tmp_path / "board")
    trainer.validate = lambda model: {"exact match": 0.5, "F1": 0.25}
    trainer.fit(1)
    found = {tag: value for _, tag, value in read(tmp_path / "board")}
    assert (found["validation/metric"], found["validation/exact match"]) == (0.5, 0.5)
    assert found["validation/F1"] == 0.25


def test_a_resumed_run_writes_no_step_twice(tmp_path):
    class Killed(BaseException):
        pass

    def loss(graph, model, words):
        seen.append(words)
        if len(seen) == 23:  # in the eighth update; the sixth was saved, the seventh written
            raise Killed
        return F.cross_entropy(F.lookup(graph, model.table, words), words % 5, reduction="sum")

    seen, board = [], tmp_path / "board"
    random.seed(1)
    with pytest.raises(Killed):
        trainer_of(tmp_path, loss, tensorboard=board).fit(2)
    (path,) = board.iterdir()
    path.write_bytes(path.read_bytes() + b"\x30\x00")  # cut short within a length
    (board / "events.out.tfevents.1.other").write_bytes(b"")
    trainer = trainer_of(tmp_path, tensorboard=board)
    assert trainer.resume() and trainer.step == 6
    trainer.fit(2)
    (board / "events.out.tfevents.1.other").unlink()  # was left alone
    found = [(step, tag) for step, tag, _ in read(board)]
    assert len(set(found)) == len(found)
    assert [step for step, tag in found if tag == "train/loss"] == list(range(1, 9))
    assert [step for step, tag in found if tag == "validation/metric"] == [4, 8]
    trainer_of(tmp_path, tensorboard=board).fit(1, overwrite=True)  # begun anew
    assert [step for step, tag, _ in read(board) if tag == "train/loss"] == [1, 2, 3, 4]


def test_nothing_is_written_where_it_is_not_asked_for(tmp_path):
    trainer_of(tmp_path).fit(1)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", *[".safetensors"] * 2]


def test_a_missing_package_is_told_when_the_trainer_is_made(tmp_path, monkeypatch):
    def importing(name, *rest, usual=builtins.__import__):
        if name.startswith("tensorboardX"):
            raise ImportError("No module named 'tensorboardX'")
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ImportError, match=r"fix: pip install 'dynbatch\[tensorboard\]'"):
        trainer_of(tmp_path, tensorboard=tmp_path / "board")
    trainer_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    files = EventFiles(tmp_path / "file" / "board")
    with pytest.raises(ValueError, match="event files cannot be written: Not a directory"):
        files.write({"step": 1, "loss": 2.0})
