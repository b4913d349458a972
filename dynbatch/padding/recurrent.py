"""LSTM and GRU along a padded sentence, with the outputs that they have without padding."""

from __future__ import annotations

import numpy as np

from dynbatch import nodes as F
from dynbatch.cells import scan
from dynbatch.models.rnn import Recurrent
from dynbatch.nodes.node import Node


def recurrent(rnn: Recurrent, xs: Node, length: int) -> Node:
    """Outputs (T_max, H) or (T_max, 2H) of a padded sentence; its first `length` rows are `rnn`'s.

    Every row is computed, those of padding too. The backward direction starts at the sentence's own
    last token: its tokens are brought into reverse order before the loop and back after it, where
    padding stays behind them, as `tf.reverse_sequence` and Keras do. No mask is needed in the loop.

    Args:
        xs:     (T_max, I), the sentence and then padding.
        length: tokens of the sentence.
    """
    hidden = rnn.hidden_size
    init = hidden if rnn.parts == 1 else (hidden,) * rnn.parts
    for layer in range(rnn.layers):
        if layer:
            xs = F.dropout(xs, rnn.dropout, rnn.training)
        outputs = []
        for direction in range(rnn.directions):
            weights = rnn._directions.weights[layer * rnn.directions + direction]
            turned = turn(xs, length) if direction else xs
            ys = scan(rnn.cell, turned, init, weights, recompute=rnn.recompute, return_state=False)
            outputs.append(turn(ys, length) if direction else ys)
        xs = outputs[0] if len(outputs) == 1 else F.concat(outputs)
    return xs


def turn(xs: Node, length: int) -> Node:
    """The first `length` rows in reverse order, the others as they lie."""
    order = np.arange(xs.rows)
    order[:length] = order[:length][::-1]
    return F.gather_rows(xs, order)


def last_states(rnn: Recurrent, outputs: Node, length: int) -> list[Node]:
    """The last h of the top layer, forward and backward, as `rnn` gives it; zeros for no token.

    Args:
        outputs: of `recurrent`.
    """
    parts = F.split(outputs, rnn.hidden_size) if rnn.bidirectional else [outputs]
    if not length:
        return [F.constant(outputs.graph, 0.0, (rnn.hidden_size,)) for _ in parts]
    return [F.pick(part, 0 if k else length - 1) for k, part in enumerate(parts)]
