"""The reference of `scan`: the cell, a plain function of nodes, called token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.testing.precision import dense_gradient
from dynbatch.testing.probe import gradient_of, probe

LENGTHS = (3, 1, 5, 0, 2, 3)
MEMORY_LENGTHS = (2, 3, 0, 1, 4)

Array = np.ndarray
Runner = Callable[..., tuple[db.Node | None, Any]]


@dataclass
class Sentence:
    """One sentence's arrays: tokens (T, D), parts of the initial state or widths, memories.

    xs: or a tuple of several, for a scan of sentences side by side.
    """

    xs: Array | tuple[Array, ...]
    init: tuple[Array | int, ...]
    memories: tuple[Array, ...] = ()


@dataclass
class Batch:
    """Sentences and how to scan them.

    single: whether the state is one node rather than a tuple.
    """

    sentences: list[Sentence]
    params: Any = None
    parameters: list[db.Parameter] = field(default_factory=list)
    single: bool = True
    reverse: bool = False


def sentences(
    token: int,
    states: Iterable[int],
    lengths: Iterable[int] = LENGTHS,
    zeros: bool = False,
    memories: Iterable[int] = (),
    seed: int = 0,
) -> list[Sentence]:
    """Random sentences of these widths. `zeros` gives widths in place of initial states."""
    rng = np.random.default_rng(seed)
    states, memories = tuple(states), tuple(memories)
    made = []
    for k, length in enumerate(lengths):
        rows = MEMORY_LENGTHS[k % len(MEMORY_LENGTHS)]
        made.append(
            Sentence(
                rng.standard_normal((length, token)),
                states if zeros else tuple([rng.standard_normal(width) for width in states]),
                tuple([rng.standard_normal((rows, width)) for width in memories]),
            )
        )
    return made


def step_by_step(
    cell: Any, xs: Any, init: Any, params: Any = None, memory: Any = None, reverse: bool = False
) -> tuple[db.Node | None, Any]:
    """The results of `db.scan` without it; None for the outputs of an empty sentence."""
    parts = init if isinstance(init, tuple) else (init,)
    first = xs[0] if isinstance(xs, tuple) else xs
    state: Any = tuple(
        [p if isinstance(p, db.Node) else F.constant(first.graph, 0.0, (p,)) for p in parts]
    )
    if not isinstance(init, tuple):
        (state,) = state
    outputs = []
    memories = [] if memory is None else [memory]
    for t in reversed(range(first.rows)) if reverse else range(first.rows):
        x = tuple([each[t] for each in xs]) if isinstance(xs, tuple) else xs[t]
        y, state = cell.function(x, state, params, *memories)
        outputs.append(y if y.ndim else F.unsqueeze(y))
    if not outputs:
        return None, state
    return F.stack(outputs[::-1] if reverse else outputs), state


def outcome(
    run: Runner, cell: Any, batch: Batch, before_backward: bool = False, **graph: Any
) -> dict[str, Array]:
    """Outputs, last states, and every gradient of a loss over both, by name."""
    for parameter in batch.parameters:
        parameter.to(graph.get("device", "cpu"))
        parameter.zero_grad()
    found: dict[str, Array] = {}
    outputs: dict[str, db.Node] = {}
    inputs: dict[str, db.Node] = {}
    weights: list[Array] = []
    with db.Graph(**{"dtype": "float64", "seed": 5} | graph) as made:
        for k, sentence in enumerate(batch.sentences):
            several = isinstance(sentence.xs, tuple)
            arrays = sentence.xs if several else (sentence.xs,)
            given: dict[str, Any] = {
                f"xs {k}" + f".{i}" * (i > 0): F.input(made, array)
                for i, array in enumerate(arrays)
            }
            xs = tuple(given.values()) if several else given[f"xs {k}"]
            parts = [
                p if isinstance(p, int) else given.setdefault(f"init {k}.{i}", F.input(made, p))
                for i, p in enumerate(sentence.init)
            ]
            memories = [
                given.setdefault(f"memory {k}.{i}", F.input(made, m))
                for i, m in enumerate(sentence.memories)
            ]
            inputs |= given
            memory = memories[0] if len(memories) == 1 else tuple(memories) or None
            init = parts[0] if batch.single else tuple(parts)
            ys, last = run(cell, xs, init, batch.params, memory, batch.reverse)
            for i, part in enumerate((last,) if batch.single else last):
                outputs[f"last {k}.{i}"] = part
            if ys is not None:
                outputs[f"ys {k}"] = F.tanh(ys)  # a gradient that differs from row to row
        for node in [*inputs.values(), *outputs.values()]:
            node.keep()
        for name, node in outputs.items():
            rng = np.random.default_rng([ord(c) for c in name])
            weights.append(rng.standard_normal(node.shape))
        if before_backward:
            found |= {name: node.value for name, node in outputs.items()}
        loss = probe(list(outputs.values()), weights)
        if made.grad:
            made.backward(loss)
            found |= {f"gradient of {name}": gradient_of(node) for name, node in inputs.items()}
        found |= {name: node.value for name, node in outputs.items()}
        found["loss"] = loss.value
    if made.grad:
        for k, parameter in enumerate(batch.parameters):
            found[f"gradient of {parameter.name} {k}"] = dense_gradient(parameter.to("cpu"))
    return found


def tame_outcome(run: Runner, cell: Any, batch: Batch, **graph: Any) -> dict[str, Array] | None:
    """`outcome` of a random cell; None if a number is above 10,000, where rounding may show."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            expected = outcome(run, cell, batch, **graph)
    except db.errors.NumericError:
        return None
    is_tame = all([np.abs(array).max(initial=0) < 1e4 for array in expected.values()])
    return expected if is_tame else None


def assert_equal_outcomes(found: dict[str, Array], expected: dict[str, Array], tol: float) -> None:
    """Equal within `tol` of the largest element; what the reference left out must be empty."""
    for name, array in found.items():
        if name not in expected:
            assert array.size == 0, name
            continue
        scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
        difference = float(np.abs(array - expected[name]).max(initial=0))
        assert difference <= tol * scale, f"{name}: differs by {difference:.1e}"
    assert not expected.keys() - found.keys()


def assert_scan_equals_steps(cell: Any, batch: Batch, tol: float = 1e-11, **graph: Any) -> None:
    """Values and every gradient of the scan are those of the cell called token by token."""
    expected = outcome(step_by_step, cell, batch)
    assert_equal_outcomes(outcome(db.scan, cell, batch, **graph), expected, tol)
