import subprocess
import sys
import tracemalloc
from collections import UserDict, deque
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from dynbatch.train.digest import array_digest, data_digest
from tests.cuda.foreign import Interfaced, Tensor


@dataclass
class Tree:
    word: str
    children: list = field(default_factory=list)
    head: object = None


class Color(Enum):
    RED, GREEN = 1, 2


class Mapped(UserDict):
    pass


class OfDlpack:
    """An array of another library that knows DLPack alone."""

    def __init__(self, value):
        self._array = np.full(3, value)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OfInterface:
    """A picture, say: it has NumPy's interface and no method."""

    def __init__(self, value):
        self._array = np.full(3, value)
        self.__array_interface__ = self._array.__array_interface__


class Pairs:
    """A data set as PyTorch has it, which knows no end but `len`."""

    def __init__(self, *pairs):
        self._pairs, self.reads = pairs, 0

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, place):
        self.reads += 1
        return self._pairs[place] if place < len(self) else None


class Sentence:
    """Something of which nobody knows what counts."""

    def __init__(self, words):
        self.words = words


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
        (Color.RED, Color.GREEN),
        (range(3), range(4)),
        (deque([1]), deque([2])),
        (Mapped(a=1), Mapped(a=2)),
        (OfDlpack(1.0), OfDlpack(2.0)),
        (OfInterface(1.0), OfInterface(2.0)),
    ],
)
def test_different_data_has_another_digest(one, other):
    assert data_digest(one) != data_digest(other)


def test_equal_data_has_the_same_digest_however_it_is_shared():
    one = np.arange(4)
    assert data_digest([(one, "a"), (one, "b")]) == data_digest([[one.copy(), "a"], (one, "b")])
    assert data_digest(tree("a", "b")) == data_digest(tree("a", "b"))


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


def test_numbers_of_tensors_count_whatever_their_type_layout_and_gradient():
    torch = pytest.importorskip("torch")
    plain = torch.arange(6).reshape(2, 3)
    kinds = {
        "float32": plain.float(),
        "integers": plain,
        "truth values": plain > 2,
        "16 bits": plain.bfloat16(),
        "with gradient": plain.float().requires_grad_(),
        "transposed": plain.T,
        "of no dimension": torch.tensor(2.5),
        "a parameter": torch.nn.Parameter(plain.double()),
    }
    for name, tensor in kinds.items():
        other = tensor.detach().clone()
        other[...] = other.flip(0) if other.ndim else 0
        assert data_digest([(tensor, 1)]) != data_digest([(other, 1)]), name
        assert data_digest([(tensor, 1)]) == data_digest([(tensor.detach().clone(), 1)]), name
    digests = [data_digest(tensor) for name, tensor in kinds.items() if name != "with gradient"]
    assert len(set(digests)) == len(digests)
    assert data_digest(kinds["with gradient"]) == data_digest(kinds["float32"])
    assert data_digest(plain) == data_digest(plain.numpy())


@pytest.mark.parametrize("make", [Tensor, Interfaced, lambda cupy, x: cupy.asarray(x)])
def test_arrays_on_a_gpu_count_as_those_on_the_host(cuda, make):
    one, other = np.arange(6.0).reshape(2, 3), np.arange(1.0, 7.0).reshape(2, 3)
    assert data_digest([make(cuda, one)]) == data_digest([one])
    assert data_digest([make(cuda, one)]) != data_digest([make(cuda, other)])


def test_a_data_set_counts_by_its_examples_each_read_once_as_a_list_does():
    data = Pairs((np.arange(2), "a"), (np.arange(3), "b"))
    assert data_digest(data) == data_digest([(np.arange(2), "a"), (np.arange(3), "b")])
    assert data.reads == 2
    assert data_digest(Pairs(1, 2)) != data_digest(Pairs(1, 3))


def test_a_large_array_is_hashed_where_it_lies(tmp_path):
    mapped = np.memmap(tmp_path / "data", mode="w+", shape=(1000, 1000))
    tracemalloc.start()
    one = data_digest({"development set": mapped})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    mapped[999, 999] = 1
    assert peak < 100_000 and data_digest({"development set": mapped}) != one


class Anything:
    """Has every attribute that it is asked for, and no numbers."""

    def __getattr__(self, name):
        return self


@pytest.mark.parametrize("value", [Sentence("a"), lambda: 0, Tree, Anything()])
def test_what_counts_by_its_type_alone_is_warned_of_once_by_name(value):
    kind = type(value).__qualname__
    with pytest.warns(UserWarning, match=f"of {kind} only the type counts") as warned:
        one = data_digest([value, (1, value), {value}])
    assert len(warned) == 1 and warned[0].filename == __file__
    both = ", ".join(sorted(["Pairs", kind]))
    with pytest.warns(UserWarning, match=f"of {both} only the type counts"):
        assert data_digest([Pairs(1), value]) != one


def test_a_tensor_that_has_no_numbers_counts_by_its_type_and_is_warned_of():
    torch = pytest.importorskip("torch")
    with pytest.warns(UserWarning, match="of Tensor only the type counts"):
        assert data_digest([torch.ones(2, device="meta")]) == data_digest(
            [torch.ones(3).to("meta")]
        )


@pytest.mark.parametrize(
    "scalar",
    [
        np.float64(1.5),
        np.float32(1.5),
        np.complex128(1j),
        np.int64(3),
        np.str_("a"),
        np.bytes_(b"a"),
    ],
)
def test_a_scalar_of_numpy_counts_by_its_dtype_and_bytes(scalar):
    # Some are numbers or texts of Python too, whose `repr` depends on NumPy's version.
    assert data_digest(scalar) == data_digest(np.asarray(scalar))
    assert data_digest(scalar) != data_digest(scalar.item())
