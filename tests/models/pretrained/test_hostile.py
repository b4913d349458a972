"""Seeds of `hostile`: each kind of damage once, and 5,000 among the exhaustive tests."""

import numpy as np
import pytest

from dynbatch.models.pretrained import tensors
from tests.models.pretrained import hostile
from tests.models.pretrained.hostile import DAMAGES, HARMLESS

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
    answers, failures = hostile.run(range(first, first + 250))
    assert failures == []
    harmless = {damage.__name__ for damage in HARMLESS}
    refused = {name for name, answer in answers if answer == "refused"}
    assert refused | harmless == {damage.__name__ for damage in DAMAGES}


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
