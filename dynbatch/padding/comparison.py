"""`Comparison`: the result of `compare_padding` as a table, JSON or a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynbatch.arguments import refused
from dynbatch.atomic import write_text
from dynbatch.padding import picture
from dynbatch.padding.forms import (
    PADDED_BUCKETED,
    PADDED_BY_TOKENS,
    PADDED_RANDOM,
    RECOMPUTE,
    UNPADDED_BY_TOKENS,
    UNPADDED_RANDOM,
    Cause,
    Form,
    is_padded,
    megabytes,
)
from dynbatch.padding.limited import WithinLimit, limits_as_text

_LABEL, _COLUMN = 26, 9


@dataclass(frozen=True)
class Comparison:
    """The memory of a training step with padding and without.

    Args:
        title:         model and data in a line.
        batch_size:    sentences of a batch.
        batch_tokens:  most tokens of a batch by tokens, padding among them.
        measured:      number of batches measured of random and bucketed order.
        epoch:         number of batches in an epoch.
        forms:         by name, in the order of the table.
        without:       bytes at the peak of a step that saves nothing: padded, logits stored, and no
                       block in the room of another. The causes are what is saved of them.
        causes:        in the order of the chain; `RECOMPUTE` comes on top of the unpadded form.
        parameter_bytes, optimizer_bytes: the same for all forms.
        by_batch_size: peak bytes by batch size, of the forms that are drawn, `forms.CURVES`.
        losses:        of the padded and the unpadded form on one batch, in nats; None where
                       steps were planned and not run.
        note:          whether these agree, and what follows.
        peers:         other programs on the same batches, PyTorch say.
        limit:         memory limit in bytes, or None.
        limited:       what each form would do to stay within it.
    """

    title: str
    batch_size: int
    batch_tokens: int
    measured: int
    epoch: int
    forms: Mapping[str, Form]
    without: int
    causes: Sequence[Cause]
    parameter_bytes: int
    optimizer_bytes: int
    by_batch_size: Mapping[str, Mapping[int, int]]
    losses: tuple[float, float] | None
    note: str
    peers: Sequence[Form] = ()
    limit: int | None = None
    limited: Sequence[WithinLimit] = ()

    def saved(self, against: str = PADDED_RANDOM, form: str = UNPADDED_RANDOM) -> float:
        """The share of the peak of `against` that `form` does without; 0.7 is 70 % less.

        Raises:
            ArgumentError: there is no form of that name.
        """
        return 1 - self._of(form).peak_bytes / self._of(against).peak_bytes

    def _of(self, name: str) -> Form:
        forms = {**self.forms, **{peer.name: peer for peer in self.peers}}
        if name not in forms:
            names = ", ".join(map(repr, forms))
            raise refused("saved", f"{name!r} is not a form", names, "give one of these")
        return forms[name]

    def table(self) -> str:
        """The whole comparison as text; megabytes of 1,000,000 bytes."""
        return _table(self)

    def __str__(self) -> str:
        return self.table()

    def as_json(self) -> dict[str, object]:
        """All numbers, as JSON has them."""
        numbers: dict[str, object] = asdict(self)
        numbers["saved"] = {
            name: round(self.saved(name), 4)
            for name in (
                PADDED_RANDOM,
                PADDED_BUCKETED,
                PADDED_BY_TOKENS,
                *[peer.name for peer in self.peers],
            )
        }
        return numbers

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers to a file, which is replaced whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        write_text(path, json.dumps(self.as_json(), indent=1) + "\n")

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw bytes over a step and bytes against batch size, as PNG, SVG or PDF by the
        file's ending.

        Raises:
            DataError:   the ending is another.
            ImportError: matplotlib is not installed.
            OSError:     the file cannot be written.
        """
        picture.draw(self.forms, self.by_batch_size, self.batch_size, Path(path))


def _table(comparison: Comparison) -> str:
    forms = [*comparison.forms.values(), *comparison.peers]
    causes = dict.fromkeys([cause for form in forms for cause in form.by_cause])
    names = [form.name.split(", ") for form in forms]
    lines = [
        comparison.title,
        f"{comparison.batch_size} sentences a batch; by tokens, at most "
        f"{comparison.batch_tokens:,} with padding",
        f"{comparison.measured} of {comparison.epoch} batches "
        f"{'planned' if comparison.losses is None else 'measured'}, the largest among them",
        "",
        *_savings(comparison),
        "",
        *_row("", [name[0] for name in names], str),
        *_row("", [", ".join(name[1:]).removeprefix("by ") for name in names], str),
        *_row("cells for each token", [form.cells_a_token for form in forms], "{:.2f}".format),
        *_row("peak of a step, MB", [form.peak_bytes for form in forms]),
        *[line for cause in causes
          for line in _row(f"  {cause}", [form.by_cause.get(cause) for form in forms])],
        *_row("activations, gradients, MB", [form.value_bytes for form in forms]),
        *_row("mean over batches, MB", [form.mean_bytes for form in forms]),
        *_row("traced, with gradients, MB", [form.traced_bytes for form in forms]),
        *_row("pool: requested, MB", [form.requested_bytes for form in forms]),
        *_row("pool: reserved, MB", [form.reserved_bytes for form in forms]),
        *_row("tokens per second", [form.tokens_per_second for form in forms], "{:,.0f}".format),
        *_curves(comparison),
        "",
        *_held_by_all(comparison),
        "",
        *_chain(comparison),
        "",
        *_limits(comparison),
        comparison.note,
    ]  # fmt: skip
    return "\n".join([line.rstrip() for line in lines])


def _row(label: str, values: Iterable[object], text: Callable[[Any], str] = megabytes) -> list[str]:
    """A line with a value of each form, or nothing where no form has one."""
    cells = ["" if value is None else text(value) for value in values]
    return [f"{label:<{_LABEL}}" + "".join([f"{cell:>{_COLUMN}}" for cell in cells])] * any(cells)


def _savings(comparison: Comparison) -> list[str]:
    """Savings of each unpadded form: beside random batches, then beside those by tokens."""
    forms = comparison.forms
    others = [each for each in forms.values() if is_padded(each.name)]
    lines = [f"{UNPADDED_RANDOM}: memory at the peak"]
    for other in [*others, *comparison.peers]:
        lines += _saving(forms[UNPADDED_RANDOM], other, other not in comparison.peers)
    lines.append(f"{UNPADDED_BY_TOKENS}: memory at the peak")
    return lines + _saving(forms[UNPADDED_BY_TOKENS], forms[PADDED_BY_TOKENS], True)


def _saving(unpadded: Form, other: Form, has_mean: bool) -> list[str]:
    lines = [f"  {_less(unpadded.peak_bytes, other.peak_bytes)} than {other.name}"]
    more = []
    if unpadded.value_bytes and other.value_bytes:
        more += [f"activations and gradients {_less(unpadded.value_bytes, other.value_bytes)}"]
    if has_mean:
        more += [f"on average {_less(unpadded.mean_bytes, other.mean_bytes)}"]
    if more:
        lines.append(f"    {'; '.join(more)}")
    return lines


def _less(size: float, other: float) -> str:
    saved = 1 - size / other
    return f"{abs(saved):.0%} {'more' if saved < 0 else 'less'}"


def _curves(comparison: Comparison) -> list[str]:
    """The peak against batch size, in the columns of the table."""
    curves = comparison.by_batch_size
    sizes = sorted({size for curve in curves.values() for size in curve})
    lines = ["", "peak by sentences of a batch, MB"] * any(sizes)
    for size in sizes:
        lines += _row(f"  {size}", [curves.get(name, {}).get(size) for name in comparison.forms])
    return lines


def _held_by_all(comparison: Comparison) -> list[str]:
    gradients = max([form.gradient_bytes or 0 for form in comparison.forms.values()])
    return [
        f"beside it, the same for all: parameters "
        f"{megabytes(comparison.parameter_bytes)} MB, their gradients {megabytes(gradients)} MB,\n"
        f"  the optimizer's state {megabytes(comparison.optimizer_bytes)} MB"
    ]


def _limits(comparison: Comparison) -> list[str]:
    if comparison.limit is None:
        return []
    return [*limits_as_text(comparison.limit, comparison.limited), ""]


def _chain(comparison: Comparison) -> list[str]:
    rest = comparison.without
    lines = [
        "where the saving comes from: the random batch with most padding",
        f"{'':<{_LABEL}}{'alone, MB':>{_COLUMN}}{'in turn':>{_COLUMN}}{'share':>{_COLUMN}}",
        _sum("nothing saved", rest),
    ]
    for cause in comparison.causes:
        if cause.name == RECOMPUTE:
            lines.append(_sum("what is left", rest))
        share = f"{cause.in_chain / comparison.without:.0%}"
        lines.append(
            f"{'  ' + cause.name:<{_LABEL}}{megabytes(-cause.alone):>{_COLUMN}}"
            f"{megabytes(-cause.in_chain):>{_COLUMN}}{share:>{_COLUMN}}"
        )
        rest -= cause.in_chain
    return [*lines, _sum('with recompute="sqrt"', rest)]


def _sum(label: str, size: int) -> str:
    return f"{label:<{_LABEL}}{'':>{_COLUMN}}{megabytes(size):>{_COLUMN}}"
