"""Parameters and modules are found at any depth of containers, or the container is refused."""

import functools
import itertools
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models
from dynbatch.errors import ArgumentError

Pair = namedtuple("Pair", "first second")


@dataclass
class Block:
    width: int
    project: object
    rest: list = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Slotted:
    project: object


class Key:
    """A key whose text is an address."""


def linear():
    return models.Linear(2, 2, bias=False)


def holding(value):
    model = models.Module()
    model.layers = value
    return model


def names(value):
    return [name for name, _ in holding(value).named_parameters()]


FOUND = {
    "a list of lists": (lambda: [[linear(), linear()], []], ["0.0.weight", "0.1.weight"]),
    "a dict of lists": (lambda: {"a": [linear()], "b": 3}, ["a.0.weight"]),
    "tuples in dicts in lists": (lambda: [{"a": (1, linear())}], ["0.a.1.weight"]),
    "a named tuple": (lambda: Pair(linear(), [linear()]), ["first.weight", "second.0.weight"]),
    "a dataclass": (
        lambda: [Block(2, linear(), [linear()])], ["0.project.weight", "0.rest.0.weight"]
    ),
    "a dataclass with slots": (lambda: Slotted({"x": linear()}), ["project.x.weight"]),
    "a namespace": (lambda: types.SimpleNamespace(a=[linear()]), ["a.0.weight"]),
    "a deque": (lambda: deque([linear()]), ["0.weight"]),
    "subclasses of dict": (
        lambda: [OrderedDict(a=linear()), defaultdict(list, b=[linear()])],
        ["0.a.weight", "1.b.0.weight"],
    ),
    "collections' own": (
        lambda: UserList([UserDict(a=linear()), types.MappingProxyType({"b": linear()})]),
        ["0.a.weight", "1.b.weight"],
    ),
    "a chain of dicts": (
        lambda: ChainMap({"a": linear()}, {"a": linear(), "b": [linear()]}),
        ["a.weight", "b.0.weight"],
    ),
    "what a call is given": (
        lambda: functools.partial(print, linear(), sep=[linear()]),
        ["args.0.weight", "keywords.sep.0.weight"],
    ),
    "other keys": (lambda: {0: linear(), (1, 2): linear()}, ["0.weight", "(1, 2).weight"]),
    "an array of objects": (
        lambda: np.array([[linear(), None]], dtype=object), ["0.0.weight"]
    ),
    "parameters": (lambda: [[db.Parameter(np.zeros(2))]], ["0.0"]),
    "a set of ids": (lambda: [{1, 2}, linear()], ["1.weight"]),
    "an endless iterator": (lambda: [itertools.count(), linear()], ["1.weight"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_they_are_found_in(case):
    make, paths = FOUND[case]
    assert names(make()) == [f"layers.{path}" for path in paths]


REFUSED = {
    "a set": (lambda: {linear()}, "layers is a set that holds"),
    "a frozenset, deep inside": (lambda: [{"a": frozenset([linear()])}], r"layers\.0\.a is a froz"),
    "a set of tuples": (lambda: {(1, linear())}, "layers is a set that holds"),
    "values of a dict": (lambda: {"a": linear()}.values(), "a dict_values that holds"),
    "a generator": (lambda: (linear() for _ in range(2)), "a generator, which gives its items"),
    "map": (lambda: map(models.Linear, (2,), (2,)), "a map, which"),
    "keys of one text": (lambda: {1: linear(), "1": linear()}, "key '1' has the name of another"),
    "keys of one text and only one module": (lambda: {1: [], "1": linear()}, "name of another"),
    "an empty key": (lambda: {"": linear()}, "key '' has an empty name"),
    "keys by address": (lambda: {Key(): linear()}, "has no name but an address"),
    "a module as a key": (lambda: {linear(): 1}, "layers is a dict with a key that is or holds"),
    "a parameter as a key": (lambda: [{db.Parameter(np.zeros(2)): 1}], "layers.0 is a dict with a"),
    "a tuple of modules as a key": (lambda: {(1, linear()): linear()}, "key that is or holds"),
    "an iterator of a list": (lambda: iter([linear()]), "a list_iterator, which gives"),
    "an iterator of a tuple": (lambda: iter((linear(),)), "a tuple_iterator, which gives"),
    "an iterator of a dict": (lambda: iter({"a": linear()}.items()), "a dict_itemiterator, which"),
    "an iterator of a set": (lambda: iter({linear()}), "a set_iterator, which gives"),
    "a list from its end": (lambda: reversed([linear()]), "a list_reverseiterator, which gives"),
    "a chain": (lambda: itertools.chain([linear()]), "a chain, which gives"),
    "a module again and again": (lambda: itertools.repeat(linear()), "a repeat, which gives"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_order_or_name_is_refused_where_it_is_set(case):
    make, problem = REFUSED[case]
    model = models.Module()
    with pytest.raises(ArgumentError, match=problem) as caught:
        model.layers = make()
    for piece in ("Module.layers", "rule:", "fix:", "test_members.py"):
        assert piece in str(caught.value)
    assert not hasattr(model, "layers")


def test_what_came_into_a_set_later_is_refused_where_parameters_are_listed():
    layers = [[set()]]
    model = holding(layers)
    assert model.parameters() == []
    layers[0][0].add(linear())
    for listing in (model.parameters, model.train, model.state_dict):
        with pytest.raises(ArgumentError, match=r"layers\.0\.0 is a set that holds"):
            listing()


def test_two_parameters_of_one_name_are_refused():
    model = holding({"a.b": db.Parameter(np.zeros(2)), "a": {"b": db.Parameter(np.zeros(3))}})
    with pytest.raises(ArgumentError, match=r"two parameters are called 'layers\.a\.b'.*\(2,\)"):
        model.state_dict()


def test_what_is_appended_later_is_found():
    model = holding([[]])
    model.layers[0].append({"a": linear()})
    assert [name for name, _ in model.named_parameters()] == ["layers.0.0.a.weight"]


def test_what_is_shared_appears_once_under_its_first_path():
    shared, rows = linear(), [linear()]
    assert names([[shared], {"again": shared}, rows, rows]) == [
        "layers.0.0.weight",
        "layers.2.0.weight",
    ]


def test_what_holds_itself_is_walked_once():
    endless, child = [linear()], linear()
    endless.append(endless)
    model = holding(endless)
    model.child, child.parent = [child], [model]
    assert [name for name, _ in model.named_parameters()] == ["layers.0.weight", "child.0.weight"]
    assert len(list(model.modules())) == 3 and model.eval().training is child.training is False
    assert repr(model).count("Linear") == 2


def test_attributes_in_slots_are_found():
    class Base(models.Module):
        __slots__ = ("__own", "empty", "first")

        def __init__(self):
            self.first, self.__own = linear(), [linear()]

    class Derived(Base):
        __slots__ = "last"

    model = Derived()
    model.middle, model.last = linear(), db.Parameter(np.zeros(2))
    assert {*model.state_dict()} == {
        "middle.weight", "first.weight", "_Base__own.0.weight", "last",
    }  # fmt: skip
    assert not model.eval().first.training


def test_a_deep_container_is_no_deep_recursion():
    deep = [linear()]
    for _ in range(3000):
        deep = [deep]
    assert len(names(deep)) == 1


def test_a_parameter_without_a_name_gets_the_path_when_it_is_set():
    own = db.Parameter(np.zeros(2))
    holding([{"a": own}])
    assert own.name == "layers.0.a"
