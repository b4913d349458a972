"""Recurrent networks along one sentence: LSTM and GRU, stacked, in one or both directions.

Formulas, gate order and parameter names are those of `torch.nn.LSTM` and `torch.nn.GRU`, so that a
state dict of theirs loads as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, overload

from dynbatch import nodes as F
from dynbatch.arguments import number, sizes, switch
from dynbatch.cells import Cell, cell, scan
from dynbatch.errors import ShapeError
from dynbatch.models.first_input import SizedByInput
from dynbatch.models.initial import Rng, generator, uniform
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter

State = Any
"""The state of one direction of one layer: a vector (H,), or a tuple of them, one for each part."""


class Weights(NamedTuple):
    """The parameters of one direction of one layer, with G gates of H units each.

    weight_ih (G·H, I), weight_hh (G·H, H), bias_ih (G·H,), bias_hh (G·H,).
    """

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter
    bias_hh: Parameter


class Directions:
    """The weights of each direction of each layer, in order. Not a list, in which `Module` would
    find the parameters a second time.
    """

    def __init__(self) -> None:
        self.weights: list[Weights] = []


def lstm_step(gates: Node, c: Node) -> tuple[Node, Node]:
    """The next h and c from the sum of all linear maps, gates (4H,) in the order i, f, g, o."""
    i, f, g, o = F.chunk(gates, 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c), c


@cell
def lstm_cell(x: Node, state: tuple[Node, Node], p: Weights) -> tuple[Node, tuple[Node, Node]]:
    """One step of an LSTM (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000)."""
    h, c = state
    gates = F.linear(x, p.weight_ih, p.bias_ih) + F.linear(h, p.weight_hh, p.bias_hh)
    h, c = lstm_step(gates, c)
    return h, (h, c)


@cell
def gru_cell(x: Node, h: Node, p: Weights) -> tuple[Node, Node]:
    """One step of a GRU (Cho et al. 2014, arXiv:1406.1078, the reset gate applied after W_hn h)."""
    x_r, x_z, x_n = F.chunk(F.linear(x, p.weight_ih, p.bias_ih), 3)
    h_r, h_z, h_n = F.chunk(F.linear(h, p.weight_hh, p.bias_hh), 3)
    z = F.sigmoid(x_z + h_z)
    n = F.tanh(x_n + F.sigmoid(x_r + h_r) * h_n)
    h = n + z * (h - n)
    return h, h


class Recurrent(SizedByInput):
    """Layer k + 1 reads the outputs of layer k, both directions joined. Base of LSTM and GRU.

    Calling it on a sentence xs (T, I) gives the last layer's outputs (T, H), or (T, 2H): forward
    features first. With `return_state=True` it gives outputs and state: a list with one entry for
    each layer and direction (layer 0 forward, layer 0 backward, layer 1 forward, …), each in the
    form that `init` takes: h (H,) for a GRU, (h, c) for an LSTM. A backward direction's last state
    is that after the first token. A sentence of length 0 gives its initial state.

    Args:
        input_size, hidden_size: I and H, of one direction. Where I is None it is that of the first
                       sentence, as of `Linear`.
        layers:        how many are stacked.
        bidirectional: whether each layer also runs from the last token to the first.
        dropout:       between layers, while training.
        rng:           generator or seed of the initial values, uniform in ±1/√H.
        recompute:     what backward makes again rather than find it kept: see `db.scan`.

    Parameters: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0` and so on for each layer,
        with the suffix `_reverse` for the backward direction.
    """

    cell: ClassVar[Cell[Any]]
    gates: ClassVar[int]
    parts: ClassVar[int]

    def __init__(
        self,
        input_size: int | None,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        *,
        rng: Rng = None,
        recompute: int | str | None = None,
    ) -> None:
        inputs = self._width("input_size", input_size)
        sizes(self, hidden_size=hidden_size, layers=layers)
        self.recompute = recompute
        self.hidden_size = hidden_size
        self.layers = layers
        self.bidirectional = switch(self, "bidirectional", bidirectional)
        self.dropout = number(self, "dropout", dropout, "[0, 1]")
        rng = generator(rng)
        self._directions = Directions()
        rows, suffixes = self.gates * hidden_size, ("", "_reverse")[: self.directions]
        places = [f"l{layer}{suffix}" for layer in range(layers) for suffix in suffixes]

        def make(width: int) -> list[Parameter]:
            shapes = [
                shape
                for k in range(len(places))
                for shape in (
                    (rows, width if k < self.directions else self.output_size),
                    (rows, hidden_size), (rows,), (rows,),
                )
            ]  # fmt: skip
            return [uniform(rng, shape, hidden_size) for shape in shapes]

        parts = len(Weights._fields)
        parameters = self._of_width(inputs, make, parts * len(places))
        for k, suffix in enumerate(places):
            weights = Weights(*parameters[parts * k : parts * (k + 1)])
            self._directions.weights.append(weights)
            for name, parameter in weights._asdict().items():
                setattr(self, f"{name}_{suffix}", parameter)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def input_size(self) -> int:
        """Features of the inputs."""
        return self._directions.weights[0].weight_ih.shape[1]

    @property
    def output_size(self) -> int:
        """Features of the outputs."""
        return self.directions * self.hidden_size

    @overload
    def __call__(
        self, xs: Node, init: Sequence[State] | None = None, return_state: Literal[False] = False
    ) -> Node: ...

    @overload
    def __call__(
        self, xs: Node, init: Sequence[State] | None = None, *, return_state: Literal[True]
    ) -> tuple[Node, list[State]]: ...

    def __call__(
        self, xs: Node, init: Sequence[State] | None = None, return_state: bool = False
    ) -> Node | tuple[Node, list[State]]:
        """Outputs, or outputs and last states.

        Args:
            xs:           one sentence, (T, I).
            init:         states to begin with, in the form of the last states; zeros by default.
            return_state: whether the last states are wanted; without them there are fewer nodes.

        Raises:
            ShapeError: `init` has another number of states, or shapes do not fit.
        """
        if self._awaited is not None:
            self._see(xs)
        starts = self._initial_states(init)
        last: list[State] = []
        cell, weights, directions = self.cell, self._directions.weights, self.directions
        for layer in range(self.layers):
            if layer:
                xs = F.dropout(xs, self.dropout, self.training)
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                arguments = xs, starts[k], weights[k], None, direction == 1, self.recompute
                if return_state:
                    ys, state = scan(cell, *arguments)
                    last.append(state)
                else:
                    ys = scan(cell, *arguments, return_state=False)
                outputs.append(ys)
            xs = outputs[0] if directions == 1 else F.concat(outputs)
        return (xs, last) if return_state else xs

    def _initial_states(self, init: Sequence[State] | None) -> Sequence[State]:
        count = len(self._directions.weights)
        if init is None:
            zeros: State = self.hidden_size if self.parts == 1 else (self.hidden_size,) * self.parts
            return [zeros] * count
        if isinstance(init, Node):
            raise ShapeError.at_caller(
                f"{type(self).__name__}: a node {init.shape} as initial states.\n"
                f"  rule: a list of states, one for each layer and direction, here {count}\n"
                f"  fix:  {'init=[state]' if count == 1 else 'init=[first, second, …]'}, each "
                f"{'(h, c) ' * (self.parts > 1)}of width {self.hidden_size}"
            )
        if len(init) != count:
            raise ShapeError.at_caller(
                f"{type(self).__name__}: {len(init)} initial states.\n"
                f"  rule: one for each layer and direction, here {count}\n"
                "  fix:  give them as return_state=True does, in a list"
            )
        return init


class LSTM(Recurrent):
    """Long short-term memory, as `torch.nn.LSTM`, along one sentence. Its states are pairs (h, c).

        i, f, o = σ(W x + b + U h + b'), one each;  g = tanh(likewise)
        c ← f ⊙ c + i ⊙ g;  h ← o ⊙ tanh(c);  output h

    `outputs, states = lstm(xs, return_state=True)` gives the last states in a list of pairs (h, c)
    of vectors (H,), in PyTorch's order: layer 0 forward, layer 0 backward, layer 1 forward, …
    `states[k]` is (h_n[k], c_n[k]) of PyTorch, and `states[2 * layer + direction]` with
    `bidirectional=True`, `states[layer]` without. A forward state is that after the last token, a
    backward state that after the first. `init` takes such a list.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> lstm = models.LSTM(4, 8, layers=2, bidirectional=True)
        >>> with db.Graph() as graph:
        ...     sentences = [F.constant(graph, 1.0, (length, 4)) for length in (3, 0, 7)]
        ...     [lstm(xs).value.shape for xs in sentences]
        [(3, 16), (0, 16), (7, 16)]
        >>> with db.Graph() as graph:
        ...     outputs, states = lstm(F.constant(graph, 1.0, (3, 4)), return_state=True)
        ...     (forward, _), (backward, _) = states[2:]  # h of the last layer
        ...     ends = F.concat([outputs[-1, :8], outputs[0, 8:]])
        ...     bool((F.concat([forward, backward]).value == ends.value).all())
        True
    """

    cell, gates, parts = lstm_cell, 4, 2


class GRU(Recurrent):
    """Gated recurrent unit, as `torch.nn.GRU`, along one sentence. Its states are vectors h.

    r, z = σ(W x + b + U h + b'), one each;  n = tanh(W_n x + b_n + r ⊙ (U_n h + b'_n))
    h ← (1 - z) ⊙ n + z ⊙ h;  output h

    `outputs, states = gru(xs, return_state=True)` gives the last states in a list of vectors h
    (H,), in the order of `LSTM`'s: `states[k]` is PyTorch's h_n[k].
    """

    cell, gates, parts = gru_cell, 3, 1
