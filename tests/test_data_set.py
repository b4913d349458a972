"""Data sets of every kind: read by their places, one mini-batch at a time, or refused by name."""

import itertools
import resource
import tracemalloc
import types
from collections import Counter, UserDict
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, parallel
from dynbatch import nodes as F
from dynbatch.data_set import LazySequence, in_order, indexed
from dynbatch.errors import ArgumentError
from dynbatch.generation.generate import generate
from dynbatch.padding import LanguageModel, compare_padding
from dynbatch.text import Vocabulary
from dynbatch.train import PreparedBatches, SentenceBatches, TokenBatches, Trainer
from tests.data_kinds import BATCH, KINDS, LAZY, MINI_BATCH, NUMBER, SIZE, Made, MapStyle

ROOM = 64 << 20
"""Bytes that a test may take beside what the process has: an endless list is a MemoryError."""


def in_order_by_batches(data):
    examples = in_order("f", "data", data)
    return iter(lambda: list(itertools.islice(examples, BATCH)), [])


READERS = {
    "by sentences": lambda data: SentenceBatches(data, BATCH).epoch(0),
    "by tokens": lambda data: TokenBatches(data, BATCH, length=lambda example: 1).epoch(0),
    "by tokens of known lengths": lambda data: TokenBatches(
        data, BATCH, length=np.ones(NUMBER, int)
    ).epoch(0),
    "prepared": lambda data: PreparedBatches(
        SentenceBatches(data, BATCH), lambda example, rng: example, workers=0
    ).epoch(0),
    "in order": in_order_by_batches,
    "for a digest": lambda data: [range(NUMBER)] * bool(SentenceBatches(data, BATCH).summary()),
}
"""Who reads the examples, and the mini-batches that come of it."""

READS = {"by tokens": 2 * NUMBER}
"""How often examples are read, where not once: `TokenBatches` takes their lengths before."""


@contextmanager
def little_memory():
    """No more than `ROOM` beside what the process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def measured(make, folder, reader):
    """The examples read, the most bytes meanwhile, and what was made."""
    made = Made()
    data = make(made, folder)
    with little_memory():
        tracemalloc.start()
        try:
            number = 0
            for batch in READERS[reader](data):
                number += len(batch)
                del batch  # a loop holds what it had until it has the next
            return number, tracemalloc.get_traced_memory()[1], made
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_data_set_is_read_for_ever_or_copied(tmp_path, kind):
    for reader in READERS:
        number, most_bytes, made = measured(KINDS[kind], tmp_path, reader)
        assert number == NUMBER and most_bytes <= 2 * MINI_BATCH, (reader, most_bytes)
        assert made.calls == (READS.get(reader, NUMBER) if kind in LAZY else 0), reader
        assert made.most <= BATCH, reader


def test_columns_of_an_arrow_table_on_disk_are_read_as_they_are_asked_for(tmp_path):
    """With `datasets` of Hugging Face, whose rows are dictionaries."""
    datasets = pytest.importorskip("datasets")
    pyarrow = pytest.importorskip("pyarrow")
    columns = pyarrow.table({"ids": [[1] * n for n in (3, 1, 2)], "tokens": [3, 1, 2]})
    made = datasets.Dataset(datasets.table.InMemoryTable(columns), fingerprint="of the test")
    made.save_to_disk(tmp_path / "data")
    data = datasets.load_from_disk(tmp_path / "data")
    batches = TokenBatches(data, 3, length=data["tokens"])
    assert batches.lengths == [3, 1, 2]
    assert sorted(len(batch) for batch in batches.epoch(0)) in ([1, 2], [1, 1, 1])
    with pytest.raises(ArgumentError, match=r"give one of its splits, examples\['test'\]"):
        SentenceBatches(datasets.DatasetDict({"test": data}), 2)


def frame():
    """A table as of pandas: [name] is a column."""
    names = ["__len__", "__getitem__", "keys", "iloc"]
    return type("DataFrame", (), dict.fromkeys(names, lambda *_: 3))()


class WithoutLength:
    def __getitem__(self, place):
        return place


class Unfinished(MapStyle):
    def __len__(self):
        raise NotImplementedError


def stream(torch, has_length):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return itertools.count()

    if has_length:
        Stream.__len__ = lambda self: 3
    return Stream()


REFUSED = {
    "a generator": (lambda: (x for x in "ab"), "is a generator", "list(examples), if it ends"),
    "an endless iterator": (itertools.count, "is a count", "list(examples), if it ends"),
    "zip": (lambda: zip("ab", "cd", strict=True), "is a zip", "list(examples)"),
    "a set": (lambda: {1, 2}, "is a set", "sorted(examples)"),
    "a frozenset": (lambda: frozenset({1}), "is a frozenset", "sorted(examples)"),
    "a dict": (lambda: {"a": 1}, "is a dict", "list(examples.values()), or list(examples.items())"),
    "a UserDict": (lambda: UserDict(a=1), "is a UserDict", "list(examples.values())"),
    "a mapping that is read only": (
        lambda: types.MappingProxyType({0: 1}), "is a mappingproxy", "list(examples.values())",
    ),
    "a Counter": (Counter, "is a Counter", "list(examples.values())"),
    "keys of a dict": (lambda: {"a": 1}.keys(), "is a dict_keys", "list(examples)"),
    "values of a dict": (lambda: {"a": 1}.values(), "is a dict_values", "list(examples)"),
    "items of a dict": (lambda: {"a": 1}.items(), "is a dict_items", "list(examples)"),
    "splits": (
        lambda: type("DatasetDict", (dict,), {"column_names": {}})(train=[1], test=[2]),
        "is a DatasetDict", "one of its splits, examples['train']",
    ),
    "a text": (lambda: "a b", "is a str", "[examples] if it is one example"),
    "bytes": (lambda: b"a b", "is a bytes", "examples.splitlines()"),
    "a frame of pandas": (frame, "is a DataFrame", "examples.to_dict('records')"),
    "a class without __len__": (WithoutLength, "is a WithoutLength", "__len__ and __getitem__"),
    "a __len__ that is not written": (lambda: Unfinished(Made()), "is a Unfinished", "__len__"),
    "a class": (lambda: MapStyle, "is the class MapStyle", "make it first: MapStyle(…)"),
    "an array of no dimension": (lambda: np.array(3), "is a ndarray", "a list of examples"),
    "None": (lambda: None, "is None", "a list of examples"),
    "a number": (lambda: 3, "is 3", "a list of examples"),
    "PyTorch's IterableDataset": (
        lambda: stream(pytest.importorskip("torch"), has_length=False), "is a Stream", "list(",
    ),
    "PyTorch's IterableDataset with a length": (
        lambda: stream(pytest.importorskip("torch"), has_length=True), "is a Stream", "list(",
    ),
    "PyTorch's DataLoader": (
        lambda: pytest.importorskip("torch").utils.data.DataLoader([1, 2]),
        "is a DataLoader", "examples.dataset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_places_is_refused_by_name_with_a_fix(kind):
    make, problem, fix = REFUSED[kind]
    data = make()
    readers = [
        lambda: list(SentenceBatches(data, 2).epoch(0)),
        lambda: TokenBatches(data, 2, length=lambda example: 1),
        lambda: parallel.spread(parallel.Communicator(), data, list),
    ]
    for read in readers:
        with little_memory(), pytest.raises(ArgumentError) as raised:
            read()
        said = str(raised.value)
        assert problem in said and fix in said and f"made at {__file__}" in said, said


def test_a_mapping_is_refused_by_whoever_takes_examples():
    data = {"a": [1, 2], "b": [3]}
    model = LanguageModel(vocabulary=9, embed=4, hidden=4, rng=0)
    with pytest.raises(ArgumentError, match="compare_padding: sentences is a dict"):
        compare_padding(model, model.loss, data, batch_size=1)
    with pytest.raises(ArgumentError, match="predict: examples is a dict"):
        db.predict(model, model.loss, data)
    with pytest.raises(ArgumentError, match="generate: prompts is a dict"):
        generate(model, data)
    with pytest.raises(ArgumentError, match="pipeline: examples is a dict"):
        parallel.pipeline(parallel.Communicator(), lambda graph, example: None, data)
    with pytest.raises(ArgumentError, match="Cost: examples is a dict"):
        parallel.Cost.measured(len, data, [2, 1], 1)
    with pytest.raises(ArgumentError, match=r"Vocabulary\.build: sequences is a dict"):
        Vocabulary.build(data)


def test_a_vocabulary_is_made_of_a_data_set_or_a_stream():
    made = Made(lambda place: np.array(["a", "b"][: 1 + place % 2]))
    for data in (MapStyle(made), (made(place) for place in range(NUMBER))):
        assert list(Vocabulary.build(data).tokens[-2:]) == ["a", "b"] and made.most <= 2


def sentence_of_ids(place):
    return np.random.default_rng(place).integers(9, size=4)


def test_the_cost_of_padding_is_measured_without_holding_the_sentences():
    model = LanguageModel(vocabulary=9, embed=4, hidden=4, rng=0)
    made = Made(sentence_of_ids)
    listed, lazy = [
        compare_padding(model, model.loss, data, batch_size=BATCH, num_batches=1, batch_sizes=())
        for data in ([sentence_of_ids(k) for k in range(NUMBER)], MapStyle(made))
    ]
    assert made.most <= BATCH and listed.losses == lazy.losses
    assert {name: form.peak_bytes for name, form in listed.forms.items()} == {
        name: form.peak_bytes for name, form in lazy.forms.items()
    }


def test_predict_takes_a_stream_a_mini_batch_at_a_time():
    made = Made()

    def total(graph, example):
        return F.sum(F.input(graph, example))

    model = models.Linear(1, 1)
    for data in (MapStyle(made), (made(place) for place in range(NUMBER))):
        values = db.predict(model, total, data, batch_size=BATCH)
        assert [float(value) for value in values[:3]] == [0.0, SIZE, 2.0 * SIZE]
        assert len(values) == NUMBER and made.most <= BATCH


def trained(folder, made, num_epochs=1, stop=None):
    """A run on examples that are made when they are read; `stop` ends it in that call of a loss."""
    model = models.Linear(SIZE, 1, rng=0)
    read = []

    def loss(graph, model, example):
        read.append(made.calls)
        if len(read) == stop:
            raise KeyboardInterrupt
        return F.sum(model(F.input(graph, example)))

    trainer = Trainer(
        model, optim.SGD(model, lr=1e-9), loss, SentenceBatches(MapStyle(made), BATCH),
        checkpoint_path=folder / "run.safetensors", show_progress=False,
    )  # fmt: skip
    trainer.resume()
    with suppress(KeyboardInterrupt):
        trainer.fit(num_epochs)
    return read[0], made.calls


def test_a_trainer_holds_one_mini_batch_and_a_resumed_one_skips_those_before_unread(tmp_path):
    made, again = Made(), Made()  # for the digest all are read, before the first mini-batch
    assert trained(tmp_path, made, stop=20 * BATCH + 1) == (NUMBER + BATCH, NUMBER + 21 * BATCH)
    assert trained(tmp_path, again) == (NUMBER + BATCH, NUMBER + NUMBER - 20 * BATCH)
    assert max(made.most, again.most) <= BATCH


@pytest.mark.parametrize("error", [IndexError, StopIteration, KeyError])
def test_an_error_of_the_data_is_no_end_of_the_epoch_and_names_the_example(error):
    class Failing(MapStyle):
        def __getitem__(self, place):
            if place == 3:
                raise error("of its own")
            return place

    with pytest.raises((error, RuntimeError)) as raised:
        list(SentenceBatches(Failing(None), 1).epoch(0))
    own = raised.value if isinstance(raised.value, error) else raised.value.__cause__
    assert own.__notes__ == ["SentenceBatches reads examples[3] of a Failing."]


def test_a_lazy_sequence_is_a_sequence():
    squares = LazySequence(range(5), lambda key: key * key)
    assert list(squares) == [0, 1, 4, 9, 16] and squares == [0, 1, 4, 9, 16] and len(squares) == 5
    assert squares[-1] == 16 and list(squares[1:4:2]) == [1, 9] and squares[2:] != squares[:3]
    assert squares != [0, 1, 4, 9] and squares != [0, 1, 4, 9, 17] and squares != 3
    with pytest.raises(IndexError):
        squares[5]


def test_a_list_that_grows_later_keeps_the_examples_that_it_had():
    growing = [1, 2, 3]
    batches = SentenceBatches(growing, 2)
    growing.append(4)
    assert sorted(itertools.chain(*batches.epoch(0))) == [1, 2, 3]
    assert indexed("f", "data", growing)[3] == 4
