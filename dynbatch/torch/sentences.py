"""Arguments of a mini-batch: a list with an entry for each sentence, whatever form it came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dynbatch.arguments import listed, refused, shown
from dynbatch.errors import ShapeError


class Packed(NamedTuple):
    """Rows of all sentences in one tensor, without padding.

    Args:
        values:  (N, …), the first sentence's rows, then the second's, and so on.
        lengths: the number of rows of each sentence, N together: integers in a list, an array or a
            tensor.

    Raises:
        ShapeError: by the module that it is given to: the lengths do not add up to N.

    Example:
        >>> import torch
        >>> from dynbatch.torch import Packed
        >>> Packed(torch.zeros(5, 3), [2, 3]).split()[1].shape
        torch.Size([3, 3])
    """

    values: Tensor
    lengths: Any

    def split(self) -> list[Tensor]:
        """A view of each sentence's rows."""
        numbers = self.lengths.tolist() if hasattr(self.lengths, "tolist") else self.lengths
        lengths = [int(number) for number in numbers]
        rows = len(self.values) if self.values.ndim else 0
        if sum(lengths) != rows or min(lengths, default=0) < 0:
            raise ShapeError.at_caller(
                f"Packed: {len(lengths)} lengths, {sum(lengths)} together, and {rows} rows.\n"
                "  rule: values (N, …) hold the rows of all sentences, and lengths add up to N\n"
                "  fix:  Packed(torch.cat(tensors), [len(tensor) for tensor in tensors])"
            )
        return list(torch.split(self.values, lengths))


def sentences_of(arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The arguments of each sentence: the first entries of all, the second entries, and so on.

    Raises:
        ArgumentError: an argument is not a list, `Packed` or a nested tensor.
        ShapeError:    one has another number of sentences than the first.
    """
    columns = [_column(number, argument) for number, argument in enumerate(arguments)]
    counts = [len(column) for column in columns]
    for number, count in enumerate(counts):
        if count != counts[0]:
            raise ShapeError.at_caller(
                f"Batched: argument 0 has {counts[0]} sentences, argument {number} has {count}.\n"
                "  rule: each argument has an entry for each sentence of the mini-batch\n"
                "  fix:  what all sentences share belongs in the parameters or the function"
            )
    return list(zip(*columns, strict=True))


def _column(place: int, argument: Any) -> list[Any]:
    if isinstance(argument, Packed):
        return argument.split()
    if isinstance(argument, Tensor):
        if not argument.is_nested:
            raise refused(
                "Batched", f"argument {place} is a tensor {tuple(argument.shape)}",
                "an entry for each sentence: a list, Packed(values, lengths), a nested tensor",
                "Packed(values, lengths); tensor.unbind() where a sentence is one row",
            )  # fmt: skip
        return list(argument.unbind())
    if isinstance(argument, str | bytes | dict):
        raise refused(
            "Batched", f"argument {place} is {shown(argument)}", "an entry for each sentence",
            "give a list, even for one sentence",
        )  # fmt: skip
    return listed("Batched", f"argument {place}", argument, "give a list of the sentences' entries")
