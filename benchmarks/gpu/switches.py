"""Every switch that no card has measured, timed each way on one case: which default to take.

The ways of a switch take turns on the same model and mini-batches, the device waited for at the end
of each round; the other switches are at their defaults meanwhile. Precisions of products, on which
results depend, are sides of `speed`.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from benchmarks.gpu import timeline
from benchmarks.gpu.cases import ROUNDED, Case, case_of, parser
from benchmarks.gpu.job import tell
from benchmarks.workloads.contender import DynbatchContender
from dynbatch.compiler.cuda import fused_product, persistent
from dynbatch.errors import DynbatchError
from dynbatch.kernels.cuda.attention import dot_product
from dynbatch.kernels.cuda.runtime import graphs, streams
from dynbatch.kernels.runtime.precision import FULL

WORTH = 0.97  # of the default's time: what is no faster than this is left as it is

Way = Callable[[DynbatchContender], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Switch:
    """A choice that the library makes, on which no result depends but in its rounding.

    Args:
        name:    where it is made.
        ways:    by what is chosen, what makes it so for a model.
        default: the way that the library goes.
    """

    name: str
    ways: Mapping[str, Way]
    default: str


def constant(module: ModuleType, name: str, *others: int) -> Switch:
    """A limit that a module has, and other values of it."""
    default = getattr(module, name)
    values = sorted({default, *others})
    ways = {str(value): _setting(module, {name: value}) for value in values}
    return Switch(f"{module.__name__.rpartition('.')[2]}.{name}", ways, str(default))


def _setting(module: ModuleType, values: Mapping[str, Any], precision: str = FULL) -> Way:
    @contextmanager
    def way(side: DynbatchContender) -> Iterator[None]:
        with (
            mock.patch.multiple(module, **values),
            mock.patch.object(side, "precision", precision),
        ):
            yield

    return way


def _tails() -> Switch:
    """Rows with which a scan's last steps are one launch, for weights of up to so many KiB.

    Those of an LSTM of 256 are 1,024 KiB; with 64 rows of a batch's 64, a scan is one kernel.
    """
    default = (persistent.TAIL_ROWS, persistent.TAIL_BYTES)
    ways = {
        f"{rows} to {size >> 10} KiB": _setting(persistent, {"TAIL_ROWS": rows, "TAIL_BYTES": size})
        for rows, size in (default, (4, 1 << 20), (16, 1 << 20), (64, 1 << 20))
    }
    return Switch("persistent.TAIL_ROWS and TAIL_BYTES", ways, next(iter(ways)))


SWITCHES = (
    constant(fused_product, "FEW_ROWS", 0, 32, 1024),  # rows up to which a step has no cuBLAS
    _tails(),
    constant(graphs, "STEPS", 8, 16),  # of a loop in one CUDA graph
    constant(streams, "WORTH_A_STREAM", 1 << 30),  # no work side by side
    *[
        Switch(
            f"attention on tensor cores, {precision}",
            {
                str(on): _setting(dot_product, {"TENSOR_CORES": on}, precision)
                for on in (False, True)
            },
            str(dot_product.TENSOR_CORES),
        )
        for precision in ROUNDED
    ],
)


def measure(case: Case, switches: Sequence[Switch] = SWITCHES) -> Iterator[dict[str, Any]]:
    """Milliseconds a training step for each way of each switch, and the way to take: by and by."""
    side = case.ours()
    prepared = [side.prepare(batch) for batch in case.data()]
    found: dict[str, Any] = {}
    gc.freeze()
    try:
        timeline.in_a_row(side, prepared)
        for switch in switches:
            found[switch.name] = _ways(switch, side, prepared, case.rounds)
            yield {"case": case.name, "switches": found}
    finally:
        gc.unfreeze()


def _ways(
    switch: Switch, side: DynbatchContender, prepared: Sequence[Any], rounds: int
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    broken: dict[str, str] = {}
    for number in range(rounds + 1):  # the first is not counted: kernels are compiled
        for name, way in switch.ways.items():
            if name in broken:
                continue
            gc.collect()
            try:
                with way(side):
                    taken = timeline.in_a_row(side, prepared)
            except DynbatchError as error:
                broken[name] = str(error)[:300]
                continue
            if number:
                seconds.setdefault(name, []).append(taken)
    ms = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    return {
        "default": switch.default,
        "ms": ms,
        "broken": broken,
        "take": _to_take(ms, switch.default),
    }


def _to_take(ms: Mapping[str, float], default: str) -> str:
    """The fastest way, if it is clearly faster than the default."""
    fastest = min(ms, key=lambda name: ms[name], default=default)
    return fastest if ms.get(fastest, 0.0) < WORTH * ms.get(default, float("inf")) else default


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: JSON after each switch; status 1 where a way does not run."""
    found = tell(measure(case_of(parser("switches", __doc__).parse_args(arguments))))
    return int(any(switch["broken"] for switch in found["switches"].values()))


if __name__ == "__main__":
    sys.exit(main())
