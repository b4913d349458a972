"""A few of the products of parameters run in `make test`, among which is each value."""

import random
from itertools import product
from types import SimpleNamespace

import pytest

from tests.marks import covering


def items_of(name, *lists, fixtures=()):
    """Items as pytest makes them of `parametrize(names, values)` for each list, and of fixtures."""
    marks = [pytest.mark.parametrize(*each).mark for each in lists]
    choices = [[(names, value) for value in values] for names, values in [*lists, *fixtures]]
    found = []
    for k, chosen in enumerate(product(*choices)):
        params = {}
        for names, value in chosen:
            split = names.split(",") if isinstance(names, str) else names
            values = value if len(split) > 1 else (value,)
            params |= dict(zip([each.strip() for each in split], values, strict=True))
        found.append(
            SimpleNamespace(
                nodeid=f"{name}[{k}]",
                callspec=SimpleNamespace(params=params),
                iter_markers=lambda _: iter(marks),
            )
        )
    return found


def test_a_product_is_cut_to_as_many_cases_as_show_each_value():
    items = items_of(
        "a", ("model", ["gru", "lstm", "tree"]), ("k", range(7)), fixtures=[("device", ["c", "d"])]
    )
    kept = covering(items)
    assert 7 <= len(kept) <= 9 < len(items)
    shown = [item.callspec.params for item in items if item.nodeid in kept]
    for name, count in (("model", 3), ("k", 7), ("device", 2)):
        assert len({params[name] for params in shown}) == count


def test_a_list_is_tried_in_full_also_one_of_several_parameters():
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for names in ("rows, few", ("rows", "few")):
        assert len(covering(items_of("a", (names, pairs)))) == 4
    assert len(covering(items_of("a", ("x", range(50))))) == 50


def test_tests_without_parameters_are_all_tried():
    plain = [SimpleNamespace(nodeid=name, iter_markers=lambda _: iter(())) for name in "ab"]
    assert covering(plain) == {"a", "b"}


def test_the_choice_depends_neither_on_the_order_nor_on_other_tests():
    items = items_of("a", ("x", range(5)), ("y", range(4)))
    others = items_of("b", ("x", range(5)), ("z", range(9)))
    kept = covering(items)
    assert all(name.startswith("a") for name in kept)
    mixed = [*items, *others]
    random.Random(1).shuffle(mixed)
    assert {name for name in covering(mixed) if name.startswith("a")} == kept
