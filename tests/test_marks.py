"""A few of the products of parameters run in `make test`, among which is each value."""

import random
from collections import Counter
from itertools import pairwise, product
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_generate_tests
from tests.marks import covering, dealt


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


def test_each_item_is_in_one_part_and_the_cases_of_each_test_are_spread_over_all():
    sizes = {"a": 50, "b": 1, "c": 7, "d": 12, "e": 1}
    items = [item for name, n in sizes.items() for item in items_of(name, ("x", range(n)))]
    parts = [[item.nodeid for item in dealt(items, number, 12)] for number in range(1, 13)]
    assert sorted(nodeid for part in parts for nodeid in part) == sorted(
        item.nodeid for item in items
    )
    for name, size in sizes.items():
        counts = [Counter(each.partition("[")[0] for each in part)[name] for part in parts]
        assert {size // 12} <= set(counts) <= {size // 12, -(-size // 12)}
    assert {len(part) for part in parts} == {len(items) // 12, len(items) // 12 + 1}


def test_a_part_keeps_the_order_and_does_not_depend_on_it():
    items = items_of("a", ("x", range(5)), ("y", range(4)))
    part = dealt(items, 2, 3)
    assert [item.nodeid for item in items if item in part] == [item.nodeid for item in part]
    assert {item.nodeid for item in dealt(items[::-1], 2, 3)} == {item.nodeid for item in part}
    steps = {int(b.nodeid[2:-1]) - int(a.nodeid[2:-1]) for a, b in pairwise(part)}
    assert len(steps) > 1  # not each third case, which may all have one parameter


def test_a_case_that_the_command_line_names_is_made_though_others_show_its_values():
    items = items_of("tests/test_a.py::test_a", ("x", range(5)), ("y", range(4)))
    named = next(item.nodeid for item in items if item.nodeid not in covering(items))
    for arguments, more in ([], set()), ([named.removeprefix("tests/")], {named}):
        metafunc = SimpleNamespace(
            config=SimpleNamespace(
                args=arguments,
                getoption=lambda name: None,
                pluginmanager=SimpleNamespace(has_plugin=lambda name: False),
            ),
            definition=SimpleNamespace(
                nodeid="tests/test_a.py::test_a",
                get_closest_marker=lambda name: None,
                iter_markers=items[0].iter_markers,
            ),
            _calls=[
                SimpleNamespace(
                    id=item.nodeid.partition("[")[2][:-1], params=item.callspec.params, marks=[]
                )
                for item in items
            ],
        )
        assert list(pytest_generate_tests(metafunc)) == [None]
        made = {f"tests/test_a.py::test_a[{call.id}]" for call in metafunc._calls}
        assert made == covering(items) | more
