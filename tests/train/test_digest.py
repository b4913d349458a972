import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dynbatch.train.digest import array_digest, data_digest


@dataclass
class Tree:
    word: str
    children: list = field(default_factory=list)
    head: object = None


def tree(*words):
    root = Tree("root")
    root.children = [Tree(word, head=root) for word in words]
    return root


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.array(2.5), np.arange(6)[::2], np.ones((2, 3)).T, np.array(True)]
)
def test_an_array_of_any_layout_has_a_digest_of_its_values(array):
    assert array_digest(array) == array_digest(array.copy(order="C"))


def test_dtype_shape_and_every_byte_of_an_array_count():
    array = np.arange(6, dtype=np.float32)
    others = [array.astype(np.float64), array.reshape(2, 3), array.view(np.int32), array + 1]
    assert len({array_digest(one) for one in [array, *others]}) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        ([1, 2], [1, 2, 2]),
        (["ab", "c"], ["a", "bc"]),
        ([["a"], "b"], [["a", "b"]]),
        ([[], []], [[[]]]),
        (1, "1"),
        (1, True),
        (0.0, -0.0),
        (None, "None"),
        (b"a", "a"),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (np.array([1, "a"], object), np.array([1, "b"], object)),
        (Path("a"), Path("b")),
        (tree("a", "b"), tree("a", "c")),
        (tree("a"), tree("a", "a")),
        (lambda: 0, Tree),
    ],
)
def test_different_data_has_another_digest(one, other):
    assert data_digest(one) != data_digest(other)


def test_equal_data_has_the_same_digest_however_it_is_shared():
    one = np.arange(4)
    assert data_digest([(one, "a"), (one, "b")]) == data_digest([[one.copy(), "a"], (one, "b")])
    assert data_digest(tree("a", "b")) == data_digest(tree("a", "b"))
    assert data_digest(object()) == data_digest(object())


def test_data_nested_deeply_is_no_recursion():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    assert data_digest(deep) != data_digest(deep[0])


def test_the_digest_of_a_set_of_texts_is_the_same_in_every_process():
    code = "from dynbatch.train import data_digest; print(data_digest({'a', 'b', 'ß', 'c'}))"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "1"}, capture_output=True,
        check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert found.stdout == f"{data_digest({'a', 'b', 'ß', 'c'})}\n".encode()
