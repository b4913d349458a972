"""Examples of a data set: read by their places, each when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeGuard, TypeVar, overload

from dynbatch.arguments import is_indexed, refused

Item = TypeVar("Item")
Example = TypeVar("Example")
Example_co = TypeVar("Example_co", covariant=True)


class DataSet(Protocol[Example_co]):
    """Examples by their places from 0 to len(data) - 1: a list, an array, PyTorch's `Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Example_co: ...


class LazySequence(Sequence[Item], Generic[Item]):
    """Items that are made when they are asked for, and not kept.

    Args:
        keys: one for each item.
        read: makes an item of its key.
    """

    def __init__(self, keys: Sequence[Any], read: Callable[[Any], Item]) -> None:
        self._keys, self._read = keys, read

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> LazySequence[Item]: ...
    def __getitem__(self, place: int | slice) -> Item | LazySequence[Item]:
        if isinstance(place, slice):
            return LazySequence(self._keys[place], self._read)
        return self._read(self._keys[place])

    def __iter__(self) -> Iterator[Item]:
        # `Sequence` would take an IndexError of the data's own code for the end, and `map` a
        # StopIteration; out of a generator both come as errors.
        for key in self._keys:
            yield self._read(key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        same_length = len(self) == len(other)
        return same_length and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def indexed(owner: str, name: str, data: DataSet[Example]) -> LazySequence[Example]:
    """The examples of a data set, for who reads them in any order.

    The data set is kept and not copied; it has as many examples as it has now.

    Args:
        owner: what the argument `name` belongs to.

    Raises:
        ArgumentError: it has keys and not places, or comes one after the other, or is a text.
    """
    if isinstance(data, LazySequence):
        return data
    if not has_places(data):
        _refuse(owner, name, data)
    try:
        count = len(data)
    except (TypeError, NotImplementedError):  # an array of no dimension, a class that has it to do
        _refuse(owner, name, data)
    return LazySequence(range(count), partial(_read, owner, name, data))


def in_order(owner: str, name: str, data: Any) -> Iterator[Any]:
    """The examples of a data set, or of anything that gives one after the other, for who reads each
    of them once.

    Raises:
        ArgumentError: it has keys, or is a text, or no data.
    """
    if hasattr(type(data), "__iter__") and not is_indexed(data):
        return iter(data)
    return iter(indexed(owner, name, data))


def has_places(data: object) -> TypeGuard[DataSet[Any]]:
    """Whether data[place] are its examples, by all that its type tells."""
    is_keyed = isinstance(data, Mapping) or hasattr(type(data), "keys")
    return is_indexed(data) and not is_keyed and not isinstance(data, str | bytes)


def _read(owner: str, name: str, data: Any, place: int) -> Any:
    try:
        return data[place]
    except NotImplementedError as error:  # a stream of PyTorch's inherits it
        _refuse(owner, name, data, error)
    except Exception as error:
        error.add_note(f"{owner} reads {name}[{place}] of a {type(data).__name__}.")
        raise


def _refuse(owner: str, name: str, data: Any, cause: Exception | None = None) -> NoReturn:
    kind = type(data)
    problem = f"{name} is a {kind.__name__}"
    if data is None or isinstance(data, int | float):
        problem, fix = f"{name} is {data!r}", f"give a list of {name}"
    elif getattr(data, "ndim", None) == 0:
        fix = f"give a list of {name}"
    elif isinstance(data, type):
        problem, fix = f"{name} is the class {data.__name__}", f"make it first: {data.__name__}(…)"
    elif isinstance(data, str | bytes):
        fix = f"give [{name}] if it is one example, {name}.splitlines(), or the content of its file"
    elif hasattr(kind, "iloc"):
        fix = f"give {name}.to_dict('records'), or of a Series {name}.to_list()"
    elif isinstance(data, Mapping) and data and hasattr(kind, "column_names"):  # Hugging Face's
        fix = f"give one of its splits, {name}[{next(iter(data))!r}]"
    elif isinstance(data, Mapping) or hasattr(kind, "keys"):
        fix = f"give list({name}.values()), or list({name}.items()) for keys beside values"
    elif isinstance(data, set | frozenset):
        fix = f"give sorted({name}), whose order is the same in every process"
    elif hasattr(data, "dataset"):
        fix = f"give {name}.dataset: mini-batches are made here, without padding"
    elif hasattr(kind, "__iter__"):
        fix = f"give list({name}), if it ends and memory holds it"
    else:
        fix = f"give a list of {name}, or a class with __len__ and __getitem__"
    raise refused(
        owner, problem, f"{name}[place] is read for each place from 0 to len({name}) - 1", fix
    ) from cause
