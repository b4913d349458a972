"""The exceptions of dynbatch: each is a `DynbatchError` and also the built-in it refines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynbatch.caller import caller

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self


class DynbatchError(Exception):
    """Base of every exception that dynbatch raises on purpose."""

    @classmethod
    def at_caller(cls, message: str, line: str | None = None) -> Self:
        """An error whose last line names the line of the user's code that led to it.

        Args:
            line: as `caller` writes it; None for the line that runs now.
        """
        return cls(f"{message}\n  made at {line or caller()}")

    def parts(self) -> tuple[str, str]:
        """The problem, and the lines below it (shapes, rule, fix) without the user's line.

        An error that follows from another is made of these, so that a message has one fix and
        names one line.
        """
        lines = [line for line in str(self).split("\n") if not line.startswith("  made at ")]
        return lines[0].removesuffix("."), "\n".join(lines[1:])


def problem_of(error: Exception) -> str:
    """The problem that an error names, for an error that has a rule and a fix of its own."""
    return error.parts()[0] if isinstance(error, DynbatchError) else str(error)


class ShapeError(DynbatchError, ValueError):
    """The shapes given to a node do not fit together. Raised at the line that made the node."""


class DtypeError(DynbatchError, TypeError):
    """An array or argument has a type that the operation does not take."""


class MissingAttributeError(DynbatchError, AttributeError):
    """A node does not have this name of PyTorch's, or a property cannot be set."""


class ArgumentError(DynbatchError, ValueError, TypeError):
    """An argument has a name, a type or a value that a function or class does not take."""


class VocabularyError(DynbatchError, IndexError):
    """An id lies outside a table: `id < 0` or `id >= number of rows`."""


class GraphError(DynbatchError, RuntimeError):
    """A graph is used outside its life: after its `with` block, or with nodes of another graph."""


class NoGradientError(GraphError):
    """A backward would reach no parameter that is trained, and no node that was kept."""


class FreedError(GraphError):
    """A value was freed by backward, or after its last reader. Keep it with `node.keep()`."""


class MissingParameterError(DynbatchError, AttributeError, KeyError, IndexError):
    """A cell reads a name, key or index that its parameters do not have."""

    __str__ = Exception.__str__  # a KeyError would quote the message


class BatchingWarning(DynbatchError, UserWarning):
    """A graph of many nodes ran almost one by one. Given once a process; the message says why."""


class EmptyBatchError(DynbatchError, ValueError):
    """A mini-batch, or a list of nodes to reduce, is empty."""


class NumericError(DynbatchError, ArithmeticError):
    """A value, loss or gradient is NaN or infinite."""


class ParallelError(DynbatchError, RuntimeError):
    """Another process of the run failed or ended, or ranks do different things.

    Attributes:
        rank: the rank that failed first; -1 where `dynbatch launch` was killed; None where it is
            unknown, or none did.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class CheckError(DynbatchError, ArithmeticError):
    """`Graph(check=True)` found two ways of computing one number that do not agree."""


class DriveError(DynbatchError, ExceptionGroup[Exception]):
    """Some instances of `drive` failed; all others went on to their end.

    Attributes:
        failures:   the exception of each instance that failed, by its number.
        results:    what each instance returned, in order; None for one that failed.
        exceptions: the failures, in order: `except*` takes them apart by kind.
    """

    failures: dict[int, Exception]
    results: list[object]

    def __new__(
        cls,
        message: str,
        exceptions: Sequence[Exception],
        failures: dict[int, Exception],
        results: list[object],
    ) -> Self:
        group = super().__new__(cls, message, exceptions)
        group.failures, group.results = failures, results
        return group

    def derive(self, exceptions: Sequence[Exception]) -> DriveError:  # type: ignore[override]
        """A part of the group; `except*` asks for it."""
        chosen = {id(error) for error in exceptions}
        failures = {n: error for n, error in self.failures.items() if id(error) in chosen}
        return DriveError(self.message, exceptions, failures, self.results)


class CheckpointError(DynbatchError, OSError):
    """A checkpoint cannot be read or written; the file already there is untouched."""


class DataError(DynbatchError, ValueError):
    """A data file holds a line that cannot be read. The message gives file and line number."""


class BackendError(DynbatchError, RuntimeError):
    """The device asked for is not available, or refuses what it is to run.

    A kernel of the user's own that does not compile is one such error, too. Nothing silently falls
    back to another device.
    """


class OutOfMemory(DynbatchError, MemoryError):
    """The pool or its upstream cannot give the bytes asked for."""


class MemoryLimitError(OutOfMemory):
    """A `memory_limit` is below `least_bytes`, the least with which a run was found to do."""

    def __init__(self, message: str, least_bytes: int = 0) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


class PlanError(DynbatchError, RuntimeError):
    """A plan breaks a rule of plans.

    That is a fault of a policy or of the planner, never of a user's graph.
    """
