"""Damaged checkpoints through everything that loads one.

    python -m tests.train.fuzz_checkpoints --count 2000

Two checkpoints, of a `Trainer` with every kind of state and of `dynbatch train`, are damaged by
a seed: their bytes, the header of the file, and the metadata in it; the last also with the digests
that belong to it, as a faulty program would write it, and in the first format, which has none. What
loads them must raise one of the library's errors, or load the tensors that were saved.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from dynbatch import Graph, optim
from dynbatch import nodes as F
from dynbatch import random as graph_random
from dynbatch.commands.main import main as dynbatch
from dynbatch.errors import DynbatchError
from dynbatch.models import Linear
from dynbatch.tasks.registry import load_task
from dynbatch.train import SentenceBatches, Trainer, load_checkpoint, read_checkpoint
from dynbatch.train.checkpoint_file import FORMAT
from dynbatch.train.digest import text_digest

Random = random.Random

# Files ------------------------------------------------------------------------------------------

DEEP, LONG = "a list in lists", "a number of many digits"
"""Stand for texts that Python's own JSON would not write."""

VALUES = [
    None, True, -1, 0, 3, 1.5, 1e308, float("nan"), float("inf"), 2**31, 2**40, 2**63, 10**30,
    10**400, "", "x", "\ud800", "model/weight", [], [1], {}, {"a": 1}, DEEP, LONG,
]  # fmt: skip


def text_of(tree: Any) -> str:
    """JSON, also of what stands for texts."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return text.replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000).replace(f'"{LONG}"', "7" * 5000)


def parted(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    """A safetensors file."""
    text = header if isinstance(header, bytes) else text_of(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def first_format(raw: bytes, change: Callable[[Any], None] = lambda state: None) -> bytes:
    """The file as dynbatch's first format: no digests."""
    header, body = parted(raw)
    state = json.loads(header["__metadata__"][FORMAT])["state"]
    change(state)
    header["__metadata__"] = {"format": FORMAT, "version": "1", "state": text_of(state)}
    return joined(header, body)


# Damage -----------------------------------------------------------------------------------------


def containers(tree: Any) -> Iterator[Any]:
    """Every object and list of JSON that is not empty."""
    if isinstance(tree, dict | list) and tree:
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from containers(value)


def edit(rng: Random, tree: Any) -> None:
    """Remove, add, rename or replace something anywhere in JSON."""
    where = rng.choice(list(containers(tree)))
    keys = list(where) if isinstance(where, dict) else list(range(len(where)))
    key, other, act = rng.choice(keys), rng.choice(keys), rng.randrange(5)
    if act == 0:
        del where[key]
    elif act == 1:
        where[key], where[other] = where[other], where[key]
    elif act == 2 and isinstance(where, dict):
        where[f"{key}{rng.choice('x/. ')}"] = where.pop(key) if rng.random() < 0.5 else where[key]
    else:
        where[key] = rng.choice(VALUES)


def flip_bits(rng: Random, raw: bytes) -> bytes:
    spoiled = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 8])):
        spoiled[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def flip_a_bit_of_a_tensor(rng: Random, raw: bytes) -> bytes:
    header, body = parted(raw)
    return joined(json.dumps(header).encode(), flip_bits(rng, body))


def overwrite(rng: Random, raw: bytes) -> bytes:
    start, length = rng.randrange(len(raw)), rng.choice([1, 7, 64, 512])
    noise = bytes(length) if rng.random() < 0.5 else rng.randbytes(length)
    return raw[:start] + noise + raw[start + length :]


def zero_a_page(rng: Random, raw: bytes) -> bytes:
    start = rng.randrange(0, len(raw), 512)
    return raw[:start] + bytes(len(raw[start : start + 512])) + raw[start + 512 :]


def move_a_part(rng: Random, raw: bytes) -> bytes:
    start, length, target = (
        rng.randrange(len(raw)),
        rng.choice([4, 64, 512]),
        rng.randrange(len(raw)),
    )
    part = raw[start : start + length]
    return (raw[:target] + part + raw[target + len(part) :])[: len(raw)]


def cut(rng: Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(len(raw))] if rng.random() < 0.5 else raw[rng.randrange(1, 64) :]


def append(rng: Random, raw: bytes) -> bytes:
    more = rng.choice([b"\0", b"\0" * 512, b"{}", rng.randbytes(64), raw])
    return raw + more


def edit_header(rng: Random, raw: bytes) -> bytes:
    header, body = parted(raw)
    for _ in range(rng.choice([1, 1, 3])):
        if any(containers(header)):
            edit(rng, header)
    return joined(header, body)


def edit_a_tensor(rng: Random, raw: bytes) -> bytes:
    """Another dtype, shape or place of a tensor, which may still fit the bytes."""
    header, body = parted(raw)
    names = [name for name in header if name != "__metadata__"]
    one, other = (header[name] for name in rng.choices(names, k=2))
    act = rng.randrange(4)
    if act == 0:
        one["dtype"] = rng.choice(
            ["F32", "I32", "U32", "F16", "BF16", "F64", "I64", "C64", "F8_E4M3"]
        )
    elif act == 1:
        one["shape"] = rng.choice(
            [one["shape"][::-1], [*one["shape"], 1], [], [0], [-1], [2**62, 4]]
        )
    elif act == 2:
        one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
    else:
        one.update(other)
    return joined(header, body)


def spoil_text(rng: Random, raw: bytes) -> bytes:
    header, body = parted(raw)
    text = bytearray(json.dumps(header).encode())
    place = rng.randrange(len(text))
    text[place:place] = rng.choice([b"\xff", b"\xc3", b"\0", b"\\", b'"', b"{", b"\xed\xa0\x80"])
    return joined(bytes(text), body)


def edit_metadata(rng: Random, raw: bytes) -> bytes:
    header, body = parted(raw)
    content = json.loads(header["__metadata__"][FORMAT])
    edit(rng, content)
    header["__metadata__"][FORMAT] = text_of(content)
    return joined(header, body)


def edit_and_sign(rng: Random, raw: bytes) -> bytes:
    """Another state with the digest that belongs to it."""
    header, body = parted(raw)
    content = json.loads(header["__metadata__"][FORMAT])
    del content["digest"]
    edit(rng, content["state"])
    text = text_of(content)
    content = json.loads(text) if DEEP not in str(content) and LONG not in str(content) else content
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    header["__metadata__"][FORMAT] = text_of({**content, "digest": text_digest(canonical)})
    return joined(header, body)


def edit_first_format(rng: Random, raw: bytes) -> bytes:
    return first_format(raw, lambda state: edit(rng, state))


def damage_first_format(rng: Random, raw: bytes) -> bytes:
    return rng.choice([flip_bits, overwrite, edit_header, edit_a_tensor, cut])(
        rng, first_format(raw)
    )


WITHOUT_DIGESTS = (edit_first_format, damage_first_format)
DAMAGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    flip_bits, flip_a_bit_of_a_tensor, overwrite, zero_a_page, move_a_part, cut, append,
    edit_header, edit_a_tensor, spoil_text, edit_metadata, edit_and_sign, *WITHOUT_DIGESTS,
)  # fmt: skip

# What loads ---------------------------------------------------------------------------------------


class Subject:
    """A checkpoint, and what loads it: by name, functions that return the tensors they loaded, or
    None after one of the library's errors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "run" / "model.safetensors"
        self.doors: dict[str, Callable[[], dict[str, bytes] | None]] = {}
        self.make()
        self.raw = self.path.read_bytes()
        self.files = {path.name: path.read_bytes() for path in self.path.parent.iterdir()}

    def make(self) -> None:
        raise NotImplementedError

    def restore(self, raw: bytes) -> None:
        """The run's folder with this checkpoint."""
        shutil.rmtree(self.path.parent)
        self.path.parent.mkdir()
        for name, content in self.files.items():
            (self.path.parent / name).write_bytes(content)
        self.path.write_bytes(raw)

    def read(self) -> dict[str, bytes]:
        read_checkpoint(self.path).restore_random_state(np.random.default_rng(1))
        return {}


def bits(prefix: str, state: dict[str, Any]) -> dict[str, bytes]:
    return {f"{prefix}{name}": value.tobytes() for name, value in state.items()}


class OfATrainer(Subject):
    """A small model, an optimizer with slots, a schedule of many numbers, a generator."""

    def make(self) -> None:
        self.trainer().fit(2)
        self.doors = {"read_checkpoint": self.read, "load_checkpoint": self.load}
        self.doors["Trainer.resume"] = self.resume

    def trainer(self) -> Trainer:
        model = Linear(3, 2, rng=np.random.default_rng(0))
        optimizer = optim.Adam(model, lr=0.1)

        def loss(graph: Graph, model: Linear, x: Any) -> Any:
            return F.sum(F.abs(model(F.input(graph, x))))

        return Trainer(
            model, optimizer, loss, SentenceBatches(np.ones((4, 2, 3), np.float32), 2),
            schedule=optim.Plateau(optimizer), validate=lambda model: 1.0, patience=9,
            checkpoint_path=self.path, random_state=np.random.default_rng(0), show_progress=False,
        )  # fmt: skip

    def loaded(self, trainer: Trainer) -> dict[str, bytes]:
        own = bits("model/", trainer.model.state_dict())  # type: ignore[attr-defined]
        return own | bits("optimizer/", trainer.optimizer.state_dict())

    def load(self) -> dict[str, bytes] | None:
        trainer = self.trainer()
        return self.whole_or_not(
            trainer,
            lambda: load_checkpoint(self.path, trainer.model, trainer.optimizer, trainer.schedule),
        )

    def resume(self) -> dict[str, bytes] | None:
        trainer = self.trainer()
        return self.whole_or_not(trainer, trainer.resume)

    def whole_or_not(self, trainer: Trainer, load: Callable[[], Any]) -> dict[str, bytes] | None:
        before = self.loaded(trainer)
        try:
            load()
        except DynbatchError:
            if self.loaded(trainer) != before:
                raise AssertionError("something was loaded in spite of the error") from None
            return None
        return self.loaded(trainer)


class OfTheCommand(Subject):
    """A translation: the two commands that load it, and what they load with."""

    def make(self) -> None:
        rng = Random(0)
        words = sorted({"".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(16)})
        data = self.folder / "pairs.tsv"
        data.write_text("".join([f"{word}\t{word[::-1]}\n" for word in words]))
        units = ["--source-units", "characters", "--target-units", "characters"]
        sizes = ["--embed", "3", "--hidden", "4", "--epochs", "1", "--batch-size", "9", "--quiet"]
        status, said = called(
            dynbatch, ["train", str(data), "--output", str(self.path.parent), *units, *sizes]
        )
        assert status == 0, said
        self.doors = {
            "read_checkpoint": self.read,
            "load_task": self.load,
            "train --resume": self.resume,
            "generate": self.generate,
        }

    def load(self) -> dict[str, bytes]:
        return bits("model/", load_task(self.path).model.state_dict())

    def resume(self) -> dict[str, bytes] | None:
        argv = ["train", "--output", str(self.path.parent), "--resume", "--quiet"]
        return self.command(argv, reads="")

    def generate(self) -> dict[str, bytes] | None:
        return self.command(["generate", str(self.path), "abca"], reads="model/")

    def command(self, argv: list[str], reads: str) -> dict[str, bytes] | None:
        """Tensors of the file that the command accepted, as safetensors itself reads them."""
        with safe_open(self.path, "np") if self.is_readable() else contextlib.nullcontext() as file:
            status, said = called(dynbatch, argv)
            if status == 0:
                names = [name for name in file.keys() if name.startswith(reads)]
                return {name: file.get_tensor(name).tobytes() for name in names}
        if status != 1 or not said.startswith("error: "):
            raise AssertionError(f"status {status}: {said}")
        return None

    def is_readable(self) -> bool:
        try:
            safe_open(self.path, "np")
        except (SafetensorError, OSError):
            return False
        return True


def called(main: Callable[[list[str]], int], argv: list[str]) -> tuple[int, str]:
    """The exit status of a command, and what it said on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = main(argv)
    return status, said.getvalue()


# Cases --------------------------------------------------------------------------------------------


@dataclass
class Findings:
    """Outcomes of some seeds: answers by damage, and those that should not have been."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def tensors_of(raw: bytes) -> dict[str, bytes]:
    """The bytes of each tensor of a whole file."""
    header, body = parted(raw)
    return {
        name: body[slice(*one["data_offsets"])]
        for name, one in header.items()
        if name != "__metadata__"
    }


class TookTooLong(BaseException):
    """Loading has not ended in time."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TookTooLong` in the block after some seconds; 0 never does."""

    def end(number: int, frame: object) -> None:
        raise TookTooLong

    if seconds:
        signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def run(seeds: range, folder: Path, seconds: int = 0) -> Findings:
    """Damage by every seed, and load by everything that loads, each within some seconds."""
    subjects: list[Subject] = []
    for kind in (OfATrainer, OfTheCommand):
        (folder / kind.__name__).mkdir()
        subjects.append(kind(folder / kind.__name__))
    found = Findings()
    for seed in seeds:
        rng = Random(seed)
        subject, damage = subjects[seed % 2], DAMAGES[seed // 2 % len(DAMAGES)]
        spoiled = damage(rng, subject.raw)
        saved = tensors_of(subject.raw)
        for name, door in subject.doors.items():
            subject.restore(spoiled)
            graph_random.seed(0)
            where = f"seed {seed}, {damage.__name__}, {name}"
            try:
                with at_most(seconds):
                    loaded = door()
            except DynbatchError:
                loaded = None
            except (Exception, TookTooLong):  # a traceback is what is looked for
                found.failures.append(f"{where}: {traceback.format_exc()}")
                continue
            found.answers[damage.__name__, "refused" if loaded is None else "loaded"] += 1
            if loaded is not None and damage not in WITHOUT_DIGESTS:
                wrong = [each for each in loaded if loaded[each] != saved.get(each)]
                if wrong:
                    found.failures.append(f"{where}: loaded other values of {wrong}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Load damaged checkpoints.")
    parser.add_argument("--count", type=int, default=2000, help="seeds to try (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="for each loading (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            range(options.first, options.first + options.count), Path(folder), options.seconds
        )
    for damage in DAMAGES:
        both = [found.answers[damage.__name__, answer] for answer in ("refused", "loaded")]
        print(f"{damage.__name__:24} {both[0]:6} refused {both[1]:6} loaded")
    for failure in found.failures[:20]:
        print(f"\n{failure}")
    print(f"\n{options.count} damaged checkpoints, {len(found.failures)} failures")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
