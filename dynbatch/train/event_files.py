"""`EventFiles`: the records of a run for TensorBoard.

An event file is a row of TFRecords: length (8 bytes), its checksum (4), an `Event` as protocol
buffer, and its checksum (4), all little-endian. `tensorboardX` has the messages and the checksum.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import IO, Any

from dynbatch.atomic import remove_leftover, replacing
from dynbatch.errors import DataError
from dynbatch.train.metrics import METRICS, PARAMETERS, Record

TAGS = {
    "loss": "train/loss",
    "gradient_norm": "train/gradient_norm",
    "lr": "train/lr",
    "sentences_per_second": "speed/sentences_per_second",
    "peak_bytes": "memory/peak_bytes",
    "planned_bytes": "memory/planned_bytes",
    "padded_bytes": "memory/padded_bytes",
    "metric": "validation/metric",
}
"""What a number of a record is called in TensorBoard."""

EPOCH = "validation/epoch"
"""The running epoch of a validation, from 0."""

SUFFIX = ".dynbatch"
"""Files without it are other programs' and left alone."""


class EventFiles:
    """Writes records as scalars into a folder for TensorBoard. Without a folder it does nothing.

    Statistics of watched parameters are called STATISTIC/PARAMETER, as "update_ratio/embed.weight".

    Args:
        folder: of this run alone; it is made with the first record.

    Raises:
        ImportError: a folder is given, and `tensorboardX` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._file: IO[bytes] | None = None
        self._protocol: Any = None if folder is None else _protocol()

    def write(self, record: Record) -> None:
        """Append the numbers of one record that are finite, under its step.

        Raises:
            DataError: the file cannot be written.
        """
        if self._folder is None:
            return
        event_type, value_type, _ = self._protocol
        values = [value_type(tag=tag, simple_value=each) for tag, each in _scalars(record)]
        event = event_type(wall_time=time.time(), step=record["step"])
        event.summary.value.extend(values)
        try:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}{SUFFIX}"
                self._file = open(self._folder / name, "ab")
                begin = event_type(wall_time=time.time(), file_version="brain.Event:2")
                self._file.write(self._framed(begin.SerializeToString()))
            self._file.write(self._framed(event.SerializeToString()))
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"{self._folder}: event files cannot be written: {error.strerror}.\n"
                "  fix: free space on the disk, or give a folder that can be written."
            ) from error

    def keep(self, wanted: Callable[[Record], bool]) -> None:
        """Remove what records that are not wanted have left in the folder's files of dynbatch."""
        self.close()
        if self._folder is None:
            return
        event_type = self._protocol[0]
        for path in sorted(self._folder.glob(f"events.out.tfevents.*{SUFFIX}")):
            remove_leftover(path)
            kept = []
            for frame, data in frames(path.read_bytes()):
                event = event_type.FromString(data)
                if not event.summary.value or wanted(_record(event)):
                    kept.append(frame)
            if len(kept) < 2:  # nothing but the version
                path.unlink()
            elif (content := b"".join(kept)) != path.read_bytes():
                with replacing(path) as temporary:
                    temporary.write_bytes(content)

    def close(self) -> None:
        """Close the file; the next `write` begins another."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _framed(self, data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + self._checksum(length) + data + self._checksum(data)

    def _checksum(self, data: bytes) -> bytes:
        """The masked CRC-32C of TFRecords."""
        crc = self._protocol[2](data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frames(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each whole TFRecord of a file, and the message in it."""
    start = 0
    while start + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        end = start + 16 + length
        if end > len(content):
            return  # cut short when the process was killed
        yield content[start:end], content[start + 12 : end - 4]
        start = end


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if name == PARAMETERS:
            for parameter, statistics in value.items():
                for statistic, each in statistics.items():
                    if isfinite(each):
                        yield f"{statistic}/{parameter}", float(each)
        elif name == METRICS:
            yield from [
                (f"validation/{k}", float(each)) for k, each in value.items() if isfinite(each)
            ]
        elif name in TAGS and isfinite(value):
            yield TAGS[name], float(value)
    if "metric" in record:
        yield EPOCH, float(record["epoch"])
    if record.get("tokens") and record.get("sentences_per_second"):
        speed = record["sentences_per_second"] * record["tokens"] / record["sentences"]
        yield "speed/tokens_per_second", speed


def _record(event: Any) -> Record:
    """The numbers that decide whether an event is kept: its step, and a validation's epoch."""
    record: Record = {"step": event.step}
    values = {value.tag: value.simple_value for value in event.summary.value}
    if TAGS["metric"] in values:
        record |= {"metric": values[TAGS["metric"]], "epoch": int(values[EPOCH])}
    return record


def _protocol() -> tuple[Any, Any, Any]:
    try:
        from tensorboardX.crc32c import crc32c
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
    except ImportError as error:
        raise ImportError(
            f"Trainer(tensorboard=...) needs tensorboardX ({error}).\n"
            "  fix: pip install 'dynbatch[tensorboard]', or leave tensorboard out"
        ) from error
    return Event, Summary.Value, crc32c
