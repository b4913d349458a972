"""Cells of every kind a user may write, each with its widths and the shapes of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.cells.scan.arguments import ScanForm
from tests.cells.step_by_step import LENGTHS, Batch, sentences

D, H = 3, 4
SQUARE = {"W": (H, D), "U": (H, H), "b": (H,)}


@dataclass
class Case:
    """A cell, with H features of each part of its state unless `states` says otherwise."""

    cell: db.cells.Cell
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    states: tuple[int, ...] = (H,)
    memories: tuple[int, ...] = ()
    single: bool = True

    @property
    def form(self) -> ScanForm:
        """The form that it is traced for."""
        return ScanForm(D, self.states, self.single)

    def batch(
        self, lengths: Sequence[int] = LENGTHS, zeros: bool = False, dtype: Any = "float64"
    ) -> Batch:
        """Sentences and parameters for it."""
        rng = np.random.default_rng(1)
        parameters = {
            name: db.Parameter((0.6 * rng.standard_normal(shape)).astype(dtype), name)
            for name, shape in self.shapes.items()
        }
        return Batch(
            sentences(D, self.states, lengths, zeros, self.memories),
            SimpleNamespace(**parameters, scale=0.5),
            list(parameters.values()),
            self.single,
        )


# LSTM and GRU ------------------------------------------------------------------------------------


@db.cell
def lstm(x, state, p):
    h, c = state
    i, f, g, o = F.chunk(F.linear(x, p.W, p.b) + F.linear(h, p.U, p.d), 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, (h, c)


@db.cell
def lstm_by_gates(x, state, p):
    h, c = state
    i = F.sigmoid(F.linear(x, p.W_i, p.b_i) + F.linear(h, p.U_i))
    f = F.sigmoid(F.linear(x, p.W_f, p.b_f) + F.linear(h, p.U_f))
    g = F.tanh(F.linear(x, p.W_g) + F.linear(h, p.U_g, p.b_g))
    o = F.sigmoid(F.linear(x, p.W_o) + F.linear(h, p.U_o, p.b_o))
    c = f * c + i * g
    h = o * F.tanh(c)
    return h, (h, c)


@db.cell
def lstm_of_joined_input(x, state, p):
    h, c = state
    i, f, g, o = F.chunk(F.linear(F.concat([x, h]), p.W, p.b), 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, (h, c)


@db.cell
def peephole_lstm(x, state, p):
    h, c = state
    i, f, g, o = F.chunk(F.linear(x, p.W, p.b) + F.linear(h, p.U), 4)
    peeps = [F.parameter(x.graph, w) for w in (p.p_i, p.p_f, p.p_o)]
    i, f = F.sigmoid(i + peeps[0] * c), F.sigmoid(f + peeps[1] * c)
    c = f * c + i * F.tanh(g)
    h = F.sigmoid(o + peeps[2] * c) * F.tanh(c)
    return h, (h, c)


@db.cell
def layer_norm_lstm(x, state, p):
    h, c = state
    gates = F.layer_norm(F.linear(x, p.W)) + F.layer_norm(F.linear(h, p.U), p.gain, p.b)
    i, f, g, o = F.chunk(gates, 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(F.layer_norm(c))
    return h, (h, c)


@db.cell
def rms_norm_rnn(x, h, p):
    """Normalised before the loop and inside."""
    h = F.tanh(F.rms_norm(F.linear(x, p.W, p.b)) + F.linear(F.rms_norm(h, p.gain), p.U))
    return h, h


@db.cell
def coupled_gates(x, state, p):
    h, c = state
    f, g = F.chunk(F.linear(x, p.W, p.b) + F.linear(h, p.U), 2)
    f = F.sigmoid(f)
    c = f * c + (1 - f) * F.tanh(g)
    return F.tanh(c), (F.tanh(c), c)


@db.cell
def gru(x, h, p):
    x_r, x_z, x_n = F.chunk(F.linear(x, p.W, p.b), 3)
    h_r, h_z, h_n = F.chunk(F.linear(h, p.U, p.d), 3)
    z = F.sigmoid(x_z + h_z)
    n = F.tanh(x_n + F.sigmoid(x_r + h_r) * h_n)
    h = (1 - z) * n + z * h
    return h, h


@db.cell
def minimal_gated_unit(x, h, p):
    f = F.sigmoid(F.linear(x, p.W_f) + F.linear(h, p.U_f, p.b_f))
    c = F.tanh(F.linear(x, p.W_h) + F.linear(f * h, p.U_h, p.b_h))
    h = (1 - f) * h + f * c
    return h, h


# What goes in and out ----------------------------------------------------------------------------


@db.cell
def unchanged_state(x, h, p):
    return F.tanh(F.linear(x, p.W) * h), h


@db.cell
def swapped_states(x, state, p):
    h, c = state
    return h * F.linear(x, p.W), (c, h)


@db.cell
def rotated_states(x, state, p):
    a, b, c = state
    return a, (F.tanh(b) * c, c, a)


@db.cell
def output_is_no_state(x, h, p):
    h = F.tanh(F.linear(x, p.W, p.b) + F.linear(h, p.U))
    return F.softmax(F.linear(h, p.V)), h


@db.cell
def output_is_the_previous_state(x, h, p):
    return h, F.tanh(F.linear(x, p.W) + F.linear(h, p.U))


@db.cell
def output_is_the_input(x, h, p):
    return x, F.tanh(F.linear(x, p.W) + F.linear(h, p.U))


@db.cell
def output_is_a_constant(x, h, p):
    return F.constant(x.graph, 2.0, (2,)), F.tanh(F.linear(x, p.W) + F.linear(h, p.U))


@db.cell
def output_is_a_parameter(x, h, p):
    return F.parameter(x.graph, p.b), F.tanh(F.linear(x, p.W) + F.linear(h, p.U))


@db.cell
def output_is_several_things(x, h, p):
    g = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return F.concat([g * h, x, h, g, F.linear(x, p.W)]), g


@db.cell
def state_is_the_token(x, h, p):
    return h + F.linear(x, p.W), F.linear(x, p.W)


@db.cell
def state_is_a_parameter(x, h, p):
    return h * F.linear(x, p.W), F.parameter(x.graph, p.b)


@db.cell
def states_that_are_one_value(x, state, p):
    h, c = state
    g = F.tanh(F.linear(x, p.W) + h * c)
    return g, (g, g)


@db.cell
def scalar_output(x, h, p):
    h = F.tanh(F.linear(x, p.W) + h)
    return F.sum(h), h


# Expressions -------------------------------------------------------------------------------------


@db.cell
def sliced_token(x, h, p):
    h = F.tanh(F.linear(x[:2], p.V) + h * x[2])
    return h[1:3], h


@db.cell
def parameters_as_values(x, h, p):
    h = F.tanh(F.parameter(x.graph, p.b) * h + F.linear(x, p.W) * F.parameter(x.graph, p.g))
    return h - F.parameter(x.graph, p.b), h


@db.cell
def scalars(x, h, p):
    h = 1 - 0.5 * (h + F.linear(x, p.W)) / 3 - F.constant(x.graph, 0.25)
    return 2 / (h * h + p.scale), -h


@db.cell
def many_functions(x, h, p):
    v = F.linear(x, p.W) + F.linear(h, p.U, p.b)
    v = F.log(F.exp(-F.abs(v)) + 1) + F.sqrt(v**2 + 0.5) / F.softplus(v)
    v = F.gelu(v) + F.silu(v) - F.elu(v) + F.clip(v, -1, 1) * F.relu(v) + F.leaky_relu(v)
    return F.log_softmax(v), F.tanh(v) ** 3


@db.cell
def softmax_in_the_recurrence(x, h, p):
    h = F.softmax(F.linear(x, p.W) + F.linear(h, p.U, p.b))
    return h * F.max(h), h - F.mean(h)


@db.cell
def maps_of_parts_of_the_state(x, h, p):
    a, b = F.chunk(h, 2)
    return F.linear(b, p.V) + a, F.tanh(F.concat([F.linear(a, p.S), F.linear(b, p.V)]))


@db.cell
def token_map_read_twice(x, h, p):
    of_token = F.linear(x, p.W)
    h = F.tanh(of_token + F.linear(h, p.U, p.b)) * (of_token - h)
    return h, h


@db.cell
def state_map_read_twice(x, h, p):
    of_state = F.linear(h, p.U, p.b)
    h = F.tanh(F.linear(x, p.W) + of_state) * F.sigmoid(of_state)
    return h, h


@db.cell
def sum_read_three_times(x, h, p):
    v = F.linear(x, p.W) + F.linear(h, p.U)
    h = F.tanh(v) * F.sigmoid(v) + v * 0.5
    return h, h


@db.cell
def sum_of_a_value_with_itself(x, h, p):
    v = F.tanh(F.linear(x, p.W) + h)
    (whole,) = F.chunk(v, 1)
    h = F.tanh(v + whole)
    return h, h


@db.cell
def states_are_linear_maps(x, state, p):
    h, c = state
    v = F.tanh(F.linear(x, p.W) + h - c)
    return h, (F.linear(v, p.U, p.b), F.linear(v, p.V))


@db.cell
def overlapping_slices(x, h, p):
    v = F.linear(x, p.W) + F.linear(h, p.U)
    h = F.tanh(v) - F.concat([F.tanh(v[:3]) * F.sigmoid(v[1:]), v[1:2] * 0.5])
    return h, h


@db.cell
def unlike_parts_of_one_map(x, h, p):
    v = F.linear(x, p.W) + F.linear(h, p.U, p.b)
    h = F.concat([F.tanh(v[:1]), F.tanh(v[1:3]), F.sigmoid(v[3:])])
    return h, h


@db.cell
def part_of_a_map_that_is_the_output(x, h, p):
    v = F.linear(x, p.W)
    return v, F.concat([v[:2] * h[2:], h[:2]])


@db.cell
def distant_parts_of_two_maps(x, h, p):
    v, w = F.linear(x, p.W), F.linear(x, p.V)
    return h, h * F.concat([v[:1] * h[:1], w[1:] * h[1:]])


@db.cell
def part_of_a_biased_map(x, h, p):
    half = F.linear(h, p.U, p.b)[2:] + F.linear(x, p.V)
    return h, F.tanh(F.concat([half, half]))


@db.cell
def columns_across_two_maps(x, h, p):
    a, b = F.linear(h, p.A), F.linear(h, p.B)
    c, d = F.sigmoid(a[1:]), F.sigmoid(b[:1])
    h = F.tanh(F.concat([a * a, b * b]) + F.linear(x, p.W)) + F.concat([c, d, c, d])
    return h, h


@db.cell
def maps_of_unlike_widths_multiplied(x, state, p):
    h, g = state
    a, b = F.linear(h, p.A), F.linear(h, p.B)
    w, u = (p.w_0, p.w_1, p.w_2, p.w_3), (p.u_0, p.u_1, p.u_2, p.u_3)
    gates = [F.sigmoid(F.linear(x, w[k]) + F.linear(g, u[k])) for k in range(4)]
    h = F.tanh(F.concat([a[:1] * gates[0], a[1:] * gates[1], b[:1] * gates[2], b[1:] * gates[3]]))
    h = h + F.concat([F.tanh(a), F.tanh(b)])
    return h, (h, F.tanh(h))


@db.cell
def place_of_the_largest(x, h, p):
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U)) + 0.1 * F.argmax(h)
    return h, h


@db.cell
def crossed_products(x, state, p):
    h, c = state
    gate = F.sigmoid(F.linear(x, p.W))
    return h, (c * gate, h * (1 - gate))


@db.cell
def squared_state(x, h, p):
    return h, h * h * F.tanh(F.linear(x, p.W))


@db.cell
def state_times_itself(x, h, p):
    return F.linear(x, p.W) * h, h * h


@db.cell
def one_weight_twice(x, h, p):
    h = F.tanh(F.linear(h, p.U, p.b) + F.linear(F.linear(x, p.W), p.U, p.b))
    return F.linear(h, p.U), h


@db.cell
def choices(x, h, p):
    """Comparisons, the greater of two, and masks, on whole values and on parts of one map."""
    v = F.linear(x, p.W) + F.linear(h, p.U, p.b)
    a, b = F.tanh(v[:2]), F.tanh(v[2:])
    kept = F.where(F.greater(a, b), F.maximum(a, h[:2]), F.minimum(b, 0.1))
    cleared = F.where(F.less_equal(h[2:], 0.2), 0.5, a) * F.not_equal(b, 0.0)
    h = F.concat([kept, cleared]) + F.maximum(v, h) * F.greater_equal(0.3, v)
    return h, F.tanh(h)


@db.cell
def quotients_and_powers(x, h, p):
    v = F.linear(x, p.W) + F.linear(h, p.U, p.b)
    s = F.sigmoid(v) + 0.5
    h = F.tanh(h / 3.0 + 0.2 / s + h / s + 1.5**v)
    return s**h, h


# Memory ------------------------------------------------------------------------------------------


@db.cell
def attention_in_the_recurrence(x, state, p, memory):
    h, context = state
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U) + F.linear(context, p.V))
    context = F.attention(F.linear(h, p.Q), memory)
    return F.concat([h, context]), (h, context)


@db.cell
def additive_attention_in_the_recurrence(x, state, p, memory):
    h, context = state
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U) + F.linear(context, p.V))
    context = F.additive_attention(F.linear(h, p.U), F.linear(memory, p.K), memory, p.b)
    return F.concat([h, context]), (h, context)


@db.cell
def general_attention_in_the_recurrence(x, state, p, memory):
    h, context = state
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U) + F.linear(context, p.V))
    context = F.general_attention(h, memory, None, p.Q)
    return h, (h, context)


@db.cell
def attention_after_the_recurrence(x, h, p, memory):
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    return F.concat([h, F.attention(F.linear(h, p.Q), memory, scale=1.0)]), h


@db.cell
def attention_of_the_token(x, h, p, memory):
    h = F.tanh(F.linear(F.attention(F.linear(x, p.T), memory), p.V) + h)
    return h, h


@db.cell
def keys_and_values(x, h, p, memory):
    keys, values = memory
    context = F.attention(h, F.linear(keys, p.K) + F.parameter(x.graph, p.b), F.tanh(values))
    h = F.tanh(F.linear(context, p.V) + F.linear(x, p.W))
    return context, h


@db.cell
def summary_of_the_memory(x, h, p, memory):
    h = F.tanh(F.linear(F.sum(memory, dim=0), p.V) * h + F.linear(x, p.W))
    return h * F.sum(memory), h


def host(array):
    """An array of any device as one of NumPy."""
    return array if isinstance(array, np.ndarray) else array.get()


def put(array, values):
    """Write NumPy's numbers to an array of any device."""
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(np.ascontiguousarray(values, array.dtype))


class RowSum(db.Node):
    """h times the sums of the memory's columns: a user's own node. It computes on the host, so that
    the stand-in for CuPy, which has no arithmetic, runs it as a GPU does.
    """

    __slots__ = ()
    retains = db.Retain(inputs=True)

    def infer_shape(self, h, memory):
        return h

    @classmethod
    def forward_batch(cls, batch, y, h, memory):
        for k in range(len(memory)):
            put(y[k][0], host(h[k][0]) * host(memory[k]).sum(axis=0))

    @classmethod
    def backward_batch(cls, batch, dy, dh, dmemory):
        h, memory = batch.input(0), batch.input(1)
        for k in range(len(memory)):
            if dh is not None:
                put(dh[k][0], host(dy[k][0]) * host(memory[k]).sum(axis=0))
            if dmemory is not None:
                rows = np.broadcast_to(host(dy[k][0]) * host(h[k][0]), dmemory[k].shape)
                put(dmemory[k], rows)


@db.cell
def own_node_over_the_memory(x, h, p, memory):
    h = F.tanh(RowSum(h, memory) + F.linear(x, p.W))
    return RowSum(h, memory), h


@db.cell
def own_nodes_of_one_value(x, h, p, memory):
    """Gradients of h come from several nodes of a user's, and one of its columns alone."""
    h = F.tanh(F.linear(x, p.W) + F.linear(h, p.U))
    parts = F.chunk(F.linear(h, p.V), 2)
    return RowSum(h, memory) + RowSum(h, memory) + F.concat([RowSum(x, x) for x in parts]), h


GATES = {"W": (4 * H, D), "U": (4 * H, H), "b": (4 * H,), "d": (4 * H,)}
BY_GATES = {
    f"{kind}_{gate}": shape
    for gate in "ifgo"
    for kind, shape in (("W", (H, D)), ("U", (H, H)), ("b", (H,)))
}
HALVES = {"A": (2, H), "B": (2, H)}
NARROW = {f"{kind}_{k}": (1, width) for k in range(4) for kind, width in (("w", D), ("u", H))}
MGU = {f"{kind}_{of}": SQUARE[kind] for of in "fh" for kind in "WUb"}
M = 2
MEMORY = {"W": (H, D), "U": (H, H), "V": (H, M), "Q": (M, H), "K": (H, M), "b": (H,), "T": (M, D)}
PAIR = {"states": (H, H), "single": False}
WITH_CONTEXT = {"states": (H, M), "memories": (M,), "single": False}

CASES = {
    case.cell.__name__: case
    for case in (
        Case(lstm, GATES, **PAIR),
        Case(lstm_by_gates, BY_GATES, **PAIR),
        Case(lstm_of_joined_input, {"W": (4 * H, D + H), "b": (4 * H,)}, **PAIR),
        Case(peephole_lstm, GATES | {"p_i": (H,), "p_f": (H,), "p_o": (H,)}, **PAIR),
        Case(layer_norm_lstm, GATES | {"gain": (4 * H,)}, **PAIR),
        Case(rms_norm_rnn, {"W": (H, D), "U": (H, H), "b": (H,), "gain": (H,)}),
        Case(coupled_gates, {"W": (2 * H, D), "U": (2 * H, H), "b": (2 * H,)}, **PAIR),
        Case(gru, {"W": (3 * H, D), "U": (3 * H, H), "b": (3 * H,), "d": (3 * H,)}),
        Case(minimal_gated_unit, MGU),
        Case(unchanged_state, SQUARE),
        Case(swapped_states, SQUARE, **PAIR),
        Case(rotated_states, states=(H, H, H), single=False),
        Case(output_is_no_state, SQUARE | {"V": (5, H)}),
        Case(output_is_the_previous_state, SQUARE),
        Case(output_is_the_input, SQUARE),
        Case(output_is_a_constant, SQUARE),
        Case(output_is_a_parameter, SQUARE),
        Case(output_is_several_things, SQUARE),
        Case(state_is_the_token, SQUARE),
        Case(state_is_a_parameter, SQUARE),
        Case(states_that_are_one_value, SQUARE, **PAIR),
        Case(scalar_output, SQUARE),
        Case(sliced_token, {"V": (H, 2)}),
        Case(parameters_as_values, SQUARE | {"g": (H,)}),
        Case(scalars, SQUARE),
        Case(many_functions, SQUARE),
        Case(softmax_in_the_recurrence, SQUARE),
        Case(maps_of_parts_of_the_state, {"V": (2, 2), "S": (2, 2)}),
        Case(token_map_read_twice, SQUARE),
        Case(state_map_read_twice, SQUARE),
        Case(sum_read_three_times, SQUARE),
        Case(sum_of_a_value_with_itself, SQUARE),
        Case(states_are_linear_maps, SQUARE | {"V": (H, H)}, **PAIR),
        Case(overlapping_slices, SQUARE),
        Case(unlike_parts_of_one_map, SQUARE),
        Case(part_of_a_map_that_is_the_output, SQUARE),
        Case(distant_parts_of_two_maps, SQUARE | {"V": (H, D)}),
        Case(part_of_a_biased_map, SQUARE | {"V": (2, D)}),
        Case(columns_across_two_maps, SQUARE | HALVES),
        Case(maps_of_unlike_widths_multiplied, HALVES | NARROW, **PAIR),
        Case(place_of_the_largest, SQUARE),
        Case(crossed_products, SQUARE, **PAIR),
        Case(squared_state, SQUARE),
        Case(state_times_itself, SQUARE),
        Case(one_weight_twice, SQUARE),
        Case(choices, SQUARE),
        Case(quotients_and_powers, SQUARE),
        Case(attention_in_the_recurrence, MEMORY, **WITH_CONTEXT),
        Case(additive_attention_in_the_recurrence, MEMORY, **WITH_CONTEXT),
        Case(general_attention_in_the_recurrence, MEMORY, **WITH_CONTEXT),
        Case(attention_after_the_recurrence, MEMORY, memories=(M,)),
        Case(attention_of_the_token, MEMORY, memories=(M,)),
        Case(keys_and_values, MEMORY | {"V": (H, 3)}, memories=(M, 3)),
        Case(summary_of_the_memory, MEMORY, memories=(M,)),
        Case(own_node_over_the_memory, SQUARE, memories=(H,)),
        Case(own_nodes_of_one_value, MEMORY | {"V": (H, H)}, memories=(H,)),
    )
}
