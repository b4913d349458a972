"""Reads a safetensors file: 8 bytes with the length of a header, the header in JSON, the tensors.

    {"__metadata__": {…}, "a.bias": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}, …}

The file is memory-mapped. Its header is gone through entry by entry, so that one made to harm takes
no more memory than its own text.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import mmap
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynbatch.backend import Array
from dynbatch.kernels.runtime.mapped import let_go
from dynbatch.kernels.runtime.precision import SHORT, round_to, upper_halves
from dynbatch.models.pretrained.folder import damaged, distinct, fault, shorten

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2,
    "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
"""What a parameter can be read from. NumPy has no bfloat16: it is the upper half of a float32."""

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(object_pairs_hook=distinct)
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"[ \t\n\r]*+'
_PAIR = rf"{_STRING}:[ \t\n\r]*+{_STRING}"
_METADATA = re.compile(rf"{{[ \t\n\r]*+(?:{_PAIR}(?:,[ \t\n\r]*+{_PAIR})*+)?+}}")
_MOST_HEADER = 100_000_000  # bytes, the format's own limit
_BLOCK = 1 << 20  # elements that are rounded at a time
_LONGEST = 2000  # characters of a name, or an entry: eight dimensions take some 200


class Tensor(NamedTuple):
    """A tensor's place in a file: its bytes from `start` to `stop`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file with their names, in the order of its header.

    Raises:
        CheckpointError: the file is not a safetensors file, or tensors overlap or leave bytes
            between them. That shows at the end, after all were given.
    """
    size, text = _header(path)
    start, places = 8 + len(text), array("q")
    try:
        for name, entry in _entries(text):
            tensor = _tensor(path, name, _DECODER.decode(text[entry]), start, size)
            places.extend((tensor.start, tensor.stop))
            yield name, tensor
    except (ValueError, RecursionError) as error:
        raise damaged(
            path, f"its header is not what it should be ({shorten(str(error))})"
        ) from error
    bounds = np.frombuffer(places, np.int64).reshape(-1, 2)
    bounds = bounds[np.lexsort(bounds.T[::-1])]
    ends = np.concatenate([[start], bounds[:, 1]])
    if not np.array_equal(ends, np.concatenate([bounds[:, 0], [size]])):
        raise damaged(path, "its tensors overlap, or leave bytes that belong to none")


def _header(path: Path) -> tuple[int, str]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if 8 <= size and length <= min(size - 8, _MOST_HEADER):
                with mmap.mmap(file.fileno(), 8 + length, access=mmap.ACCESS_READ) as mapped:
                    with memoryview(mapped) as view:
                        return size, str(view[8:], "latin-1")
    except (OSError, ValueError) as error:
        raise fault(path, f"it cannot be read ({error})", "check the folder") from error
    raise damaged(path, f"a header of {length:,} bytes in a file of {size:,}")


def _entries(text: str) -> Iterator[tuple[str, slice]]:
    """The keys of the object that the text is, and where their values are. Metadata is passed over.

    Raises:
        ValueError: it is not such an object, or a value is too long for a tensor's entry.
    """
    start = _past(text, 0, "{")
    while text[start : start + 1] == '"':
        key, length = _DECODER.raw_decode(text[start : start + _LONGEST])
        start = _past(text, start + length, ":")
        if is_metadata := key == "__metadata__":
            metadata = _METADATA.match(text, start)
            stop = metadata.end() if metadata else 0
        else:
            stop = text.find("}", start, start + _LONGEST) + 1
        if text[start : start + 1] != "{" or not stop:
            raise ValueError(f"{shorten(key)} is not described by an object")
        if not is_metadata:
            yield key.encode("latin-1", "replace").decode("utf-8", "replace"), slice(start, stop)
        start = _SPACE.match(text, stop).end()  # type: ignore[union-attr]
        if text[start : start + 1] != ",":
            break
        start = _past(text, start, ",")
        if text[start : start + 1] != '"':
            raise ValueError(f"a name expected at {start}")
    if _past(text, start, "}") != len(text):
        raise ValueError("something follows the object")


def _past(text: str, start: int, mark: str) -> int:
    """The place after a mark, and after the spaces around it."""
    start = _SPACE.match(text, start).end()  # type: ignore[union-attr]
    if text[start : start + 1] != mark:
        raise ValueError(f"{mark!r} expected at {start}")
    return _SPACE.match(text, start + 1).end()  # type: ignore[union-attr]


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{shorten(name)} has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    width = ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if width is None:
        raise ValueError(f"{shorten(name)} is of dtype {shorten(dtype)}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{shorten(name)} has shape {shorten(shape)} at {shorten(offsets)}")
    count = width
    for extent in shape:
        count *= extent
    first, last = offsets[0] + start, offsets[1] + start
    if last > size or last - first != count:
        raise ValueError(
            f"{shorten(name)} of {count:,} bytes at {offsets} in {size - start:,} bytes"
        )
    return Tensor(path, dtype, tuple(shape), first, last)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(
        [type(one) is int and 0 <= one < 1 << 63 for one in value]
    )


class Mapped:
    """The bytes of a file, memory-mapped: what is read of them is copied, not kept."""

    def __init__(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise fault(path, f"it cannot be read ({error})", "check the folder") from error

    def raw(self, tensor: Tensor) -> Array:
        """A view of a tensor of floats, or a copy of one at an odd address; bfloat16 as uint16."""
        dtype = np.dtype(FLOATS[tensor.dtype])
        count = (tensor.stop - tensor.start) // dtype.itemsize
        if count == 0:
            return np.zeros(tensor.shape, dtype)
        array: Array = np.frombuffer(self._bytes, dtype, count, tensor.start)
        return (array if array.flags.aligned else array.copy()).reshape(tensor.shape)

    def equal(self, tensor: Tensor, others: Mapped, other: Tensor) -> bool:
        """Whether a tensor and another, of the same shape, are alike in every bit."""
        one, two = self.raw(tensor), others.raw(other)
        bits = np.dtype(f"u{one.itemsize}")
        return one.dtype == two.dtype and np.array_equal(one.view(bits), two.view(bits))

    def read(self, tensor: Tensor, out: Array) -> None:
        """out = the tensor, converted to float32; `out` may be the transpose of such an array.

        Where `out` is uint16, the upper halves of the nearest bfloat16, of two the even one.
        """
        raw = self.raw(tensor)
        self._convert(tensor, raw, out)
        let_go(raw)

    @staticmethod
    def _convert(tensor: Tensor, raw: Array, out: Array) -> None:
        if out.dtype == np.uint16:
            rows = max(1, _BLOCK // max(1, raw[:1].size))
            for first in range(0, len(raw), rows):
                part = raw[first : first + rows]
                if tensor.dtype != "BF16":
                    with np.errstate(over="ignore", invalid="ignore"):
                        part = upper_halves(round_to(part.astype(np.float32), SHORT))
                out[first : first + rows] = part
            return
        if tensor.dtype != "BF16":
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(out, raw, casting="same_kind")
            return
        halves = out.view(np.dtype([("low", "<u2"), ("high", "<u2")]))
        halves["low"] = 0
        halves["high"] = raw
