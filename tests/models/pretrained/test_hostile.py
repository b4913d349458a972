"""Seeds of `hostile`: each kind of damage once, and 5,000 among the exhaustive tests."""

import contextlib
import dataclasses
import json
import random
import shutil
import tracemalloc

import numpy as np
import pytest

from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained import tensors
from tests.marks import exhaustive
from tests.models.pretrained import fixtures, hostile
from tests.models.pretrained.hostile import DAMAGES, HARMLESS
from tests.models.pretrained.test_families import FAMILIES

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_and_hostile_folders_are_refused_or_load_what_they_hold(part):
    kinds = range(part, len(DAMAGES), PARTS)
    answers, failures = hostile.run([kind + len(DAMAGES) * (kind % 4) for kind in kinds])
    assert failures == []
    assert {answer for _, answer in answers} == {"refused", "loaded"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 5000, 250))
def test_5000_damaged_and_hostile_folders_are_refused_or_load_what_they_hold(first):
    _, failures = hostile.run(range(first, first + 250))
    assert failures == []


@pytest.mark.exhaustive
def test_every_damage_but_the_harmless_is_refused_in_some_folder():
    # An edit at random may leave what a model never reads, so one folder of a kind is not enough.
    answers, _ = hostile.run(range(8 * len(DAMAGES)))
    harmless = {damage.__name__ for damage in HARMLESS}
    refused = {name for name, answer in answers if answer == "refused"}
    assert refused | harmless == {damage.__name__ for damage in DAMAGES}


NUMBERS = (0, -1, 10**9, 2**63, 10**30, 1e308, float("nan"), "x", None, [], {"a": {}})
KINDS = ("bert", "roberta", "gpt2", "llama", "t5", "marian")


@pytest.mark.parametrize("count", [1, exhaustive(len(NUMBERS))])
@pytest.mark.parametrize("name", KINDS)
def test_a_number_of_a_familys_configuration_can_do_no_harm(name, count, tmp_path):
    for file in (fixtures.FOLDER / name).glob("*.*"):
        shutil.copy(file, tmp_path)
    kind, path = FAMILIES[name], tmp_path / "config.json"
    config = json.loads(path.read_text())
    fields = {one.name for one in dataclasses.fields(kind.config_type)} & config.keys()
    tracemalloc.start()
    try:
        for field in sorted(fields):
            for number in random.Random(field).sample(NUMBERS, count):
                path.write_text(json.dumps(config | {field: number}))
                with contextlib.suppress(CheckpointError):
                    kind.from_pretrained(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * sum([file.stat().st_size for file in tmp_path.iterdir()]) + 500_000


def read_nothing(self, tensor, out):
    out[...] = 0


def read_much(self, tensor, out, original=tensors.Mapped.read):
    np.ones(10**6)
    original(self, tensor, out)


def read_badly(self, tensor, out):
    raise ValueError("not one of the library's errors")


@pytest.mark.parametrize(
    ("faulty", "found"),
    [
        (read_nothing, "other values than those in the files"),
        (read_much, "bytes for files of"),
        (read_badly, "not one of the library's errors"),
    ],
)
def test_faults_of_the_reader_would_be_found(monkeypatch, faulty, found):
    monkeypatch.setattr(tensors.Mapped, "read", faulty)
    _, failures = hostile.run(range(len(DAMAGES) - len(HARMLESS), len(DAMAGES)))
    assert len(failures) == len(HARMLESS) and all(found in failure for failure in failures)
