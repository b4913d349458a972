"""`RunCurves`: the course of a training run, read from its metrics file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from dynbatch.errors import DataError
from dynbatch.train.metrics import METRICS, PARAMETERS, Record, read_metrics

FILE = "metrics.jsonl"

SMOOTHED_OVER = 50
"""The window of a running mean, and the end of a curve, are one of so many parts of the run."""

MOST_MEANS = 1000


@dataclass(frozen=True)
class Curve:
    """Numbers at updates."""

    steps: list[int]
    values: list[float]

    def smoothed(self) -> Curve:
        """A running mean of the n finite values, at some 1,000 of their steps: of x_{t-h} to
        x_{t+h}, h = min(n / 100, t / 4), t from 0.

        A window around t does not lag behind t, as one that ends there does. It is narrow at first,
        where a loss falls fast, and at the end it is cut off.
        """
        finite = [pair for pair in zip(self.steps, self.values, strict=True) if isfinite(pair[1])]
        values = [value for _, value in finite]
        half = len(values) // (2 * SMOOTHED_OVER)
        steps, means = [], []
        count = min(len(values), MOST_MEANS)
        for k in range(count):
            t = k * (len(values) - 1) // max(1, count - 1)
            reach = min(half, t // 4)
            window = values[t - reach : t + reach + 1]
            steps.append(finite[t][0])
            means.append(sum(window) / len(window))
        return Curve(steps, means)

    def finite(self) -> list[float]:
        return [value for value in self.values if isfinite(value)]

    @property
    def end(self) -> float:
        """The mean of the last fiftieth; NaN if there are no numbers."""
        numbers = self.finite()
        last = numbers[-max(1, len(numbers) // SMOOTHED_OVER) :]
        return sum(last) / len(last) if last else nan


@dataclass(frozen=True)
class RunCurves:
    """The curves of a run.

    Args:
        name:     the folder's last part.
        unit:     "tokens", or "sentences" where no tokens are counted.
        epochs:   how many have begun; 0 where no update says its epoch.
        loss:     of every update.
        metric:   of every validation.
        measure:  the metric's name; "" where the file does not say it.
        best:     the step of the last validation that was the best so far, or None.
        rate:     the learning rate.
        speed:    in units per second.
        memory:   bytes at the peak, measured.
        padded:   bytes that a padded mini-batch would take, where that was worked out.
        watched:  for each watched parameter its update/weight ratio.
    """

    name: str
    unit: str
    epochs: int
    loss: Curve
    metric: Curve
    measure: str
    best: int | None
    rate: Curve
    speed: Curve
    memory: Curve
    padded: Curve
    watched: dict[str, Curve]


def read_curves(run: str | os.PathLike[str]) -> RunCurves:
    """The curves of a run's folder, or of a metrics file.

    Raises:
        DataError: there is no metrics file, it is damaged, or it tells of no update.
    """
    path = Path(run)
    if path.is_dir():
        path = path / FILE
    if not path.exists():
        raise DataError(
            f"{path}: there is no such file.\n"
            "  rule: the folder of a run holds metrics.jsonl, which Trainer(metrics_path=...) "
            "writes\n  fix:  check the path, or give the metrics file itself"
        )
    records = read_metrics(path)
    updates = [record for record in records if "loss" in record]
    if not updates:
        raise DataError(f"{path}: tells of no update.\n  fix: train first; it is one line each.")
    validations = [record for record in records if "metric" in record]
    best = [record["step"] for record in validations if record.get("is_best")]
    unit = "tokens" if "tokens" in updates[0] else "sentences"
    return RunCurves(
        name=path.parent.name if path.name == FILE else path.name,
        unit=unit,
        epochs=max([int(record.get("epoch", -1)) + 1 for record in updates]),
        loss=_curve(updates, "loss"),
        metric=_curve(validations, "metric"),
        measure=next((next(iter(one[METRICS]), "") for one in validations if METRICS in one), ""),
        best=best[-1] if best else None,
        rate=_curve(updates, "lr"),
        speed=_curve_of(updates, lambda record: _speed(record, unit)),
        memory=_curve(updates, "peak_bytes"),
        padded=_curve([record for record in updates if "padded_bytes" in record], "padded_bytes"),
        watched=_watched([record for record in records if PARAMETERS in record]),
    )


def _curve(records: Sequence[Record], name: str) -> Curve:
    return _curve_of(records, lambda record: record.get(name))


def _curve_of(records: Sequence[Record], value: Callable[[Record], float | None]) -> Curve:
    values = [value(record) for record in records]
    return Curve(
        [record["step"] for record in records], [nan if v is None else float(v) for v in values]
    )


def _speed(record: Record, unit: str) -> float | None:
    speed, sentences = record.get("sentences_per_second"), record.get("sentences")
    if speed is None or unit == "sentences":
        return speed
    tokens = record.get("tokens")
    return speed * tokens / sentences if tokens is not None and sentences else None


def _watched(records: Sequence[Record]) -> dict[str, Curve]:
    names = dict.fromkeys([name for record in records for name in record[PARAMETERS]])

    def ratio_of(name: str) -> Callable[[Record], float | None]:
        return lambda record: record[PARAMETERS].get(name, {}).get("update_ratio")

    return {name: _curve_of(records, ratio_of(name)) for name in names}
