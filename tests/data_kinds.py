"""Data sets of twenty kinds, of which some make their examples when they are read."""

import array
import weakref
from collections import UserList, deque
from collections.abc import Sequence

import numpy as np
import pytest

from dynbatch.train import SentenceBatches

NUMBER, SIZE, BATCH = 256, 2048, 8
MINI_BATCH = BATCH * SIZE * 8


class Made:
    """Makes examples, and counts them: all, and the most that were there at a time."""

    def __init__(self, make=lambda place: np.full(SIZE, float(place))):
        self.make, self.calls, self.there, self.most = make, 0, 0, 0

    def __call__(self, place):
        assert place.__class__ is int and 0 <= place < NUMBER  # what lies beyond is never asked for
        example = self.make(place)
        self.calls += 1
        self.there += 1
        self.most = max(self.most, self.there)
        weakref.finalize(example, self._gone)
        return example

    def _gone(self):
        self.there -= 1


class MapStyle:
    """A data set of PyTorch's map style: no end but `len`."""

    def __init__(self, made):
        self.made = made

    def __len__(self):
        return NUMBER

    def __getitem__(self, place):
        return self.made(place)


class MapStyleWithIterator(MapStyle):
    def __iter__(self):
        raise AssertionError("it is read by places")


class OfSequence(MapStyle, Sequence):
    pass


def torch_data(make):
    """A kind of data set that needs PyTorch: make(torch, made)."""

    def made(made, folder):
        torch = pytest.importorskip("torch")
        made.make = lambda place: torch.full((SIZE,), float(place), dtype=torch.float64)
        return make(torch, made)

    return made


def of_torch(torch, made):
    class Sentences(torch.utils.data.Dataset):
        __len__, __getitem__ = MapStyle.__len__, MapStyle.__getitem__

    data = Sentences()
    data.made = made
    return data


def of_files(made, folder):
    np.zeros(SIZE).tofile(folder / "example")
    made.make = lambda place: np.fromfile(folder / "example") + place
    return MapStyle(made)


def memory_mapped(made, folder):
    return np.memmap(folder / "data", mode="w+", shape=(NUMBER, SIZE), dtype=np.float64)


def rows():
    return np.zeros((NUMBER, SIZE))


KINDS = {
    "a list": lambda made, _: list(rows()),
    "a tuple": lambda made, _: tuple(rows()),
    "a range": lambda made, _: range(NUMBER),
    "a deque": lambda made, _: deque(rows()),
    "a UserList": lambda made, _: UserList(rows()),
    "an array of a number each": lambda made, _: array.array("d", range(NUMBER)),
    "a NumPy array": lambda made, _: rows(),
    "a NumPy array of objects": lambda made, _: np.array([*rows(), None], object)[:-1],
    "a NumPy array of records": lambda made, _: np.zeros(NUMBER, [("x", "f8", SIZE), ("y", "i4")]),
    "a memory-mapped file": memory_mapped,
    "a class with __len__ and __getitem__": lambda made, _: MapStyle(made),
    "a class with an iterator, too": lambda made, _: MapStyleWithIterator(made),
    "a subclass of Sequence": lambda made, _: OfSequence(made),
    "a class that loads a file for each": of_files,
    "the examples of other mini-batches": lambda made, _: (
        SentenceBatches(MapStyle(made), 3).examples
    ),
    "PyTorch's Dataset": torch_data(of_torch),
    "PyTorch's Subset": torch_data(
        lambda torch, made: torch.utils.data.Subset(of_torch(torch, made), range(NUMBER))
    ),
    "PyTorch's ConcatDataset": torch_data(
        lambda torch, made: torch.utils.data.ConcatDataset([of_torch(torch, made)])
    ),
    "PyTorch's TensorDataset": torch_data(
        lambda torch, made: torch.utils.data.TensorDataset(torch.zeros(NUMBER, SIZE))
    ),
    "a tensor of PyTorch's": torch_data(lambda torch, made: torch.zeros(NUMBER, SIZE)),
}
"""How a data set of each kind is made."""

LAZY = {name for name in KINDS if "class" in name} | {
    "a subclass of Sequence", "the examples of other mini-batches",
    "PyTorch's Dataset", "PyTorch's Subset", "PyTorch's ConcatDataset",
}  # fmt: skip
"""Those whose examples are made when they are read."""
