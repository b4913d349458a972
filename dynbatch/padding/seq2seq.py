"""`models.Seq2Seq` padded: attention over padded sources, with a mask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.cells import scan
from dynbatch.kernels import arrays
from dynbatch.models.attention import AdditiveAttention
from dynbatch.models.seq2seq import Seq2Seq, decoder_cell
from dynbatch.nodes.node import Node, Owner
from dynbatch.padding.recurrent import last_states, recurrent
from dynbatch.padding.targets import ignored_after
from dynbatch.parameter import Parameter

SATURATED = 20.0
"""tanh of it is 1, and its slope 0, in float32 and in float64."""

HIDDEN = 25.0
"""Scores of padding lie 2 · 25 below those of words at least: exp(-50) adds nothing to a float."""


class PaddedSeq2Seq:
    """`Seq2Seq.loss` of a padded pair.

    With additive attention the decoder attends to all of the padded source and a mask leaves the
    padding out. With "general" attention padding's keys and values are computed, and left out
    before the loop: that holds less than a padded program does, to the favour of padding.
    """

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model
        attention = model.decoder.attention
        self.mask = MaskedAttention(attention) if isinstance(attention, AdditiveAttention) else None
        decoder = vars(model.decoder)
        self.decoder: Any = model.decoder
        if self.mask is not None:
            self.decoder = SimpleNamespace(**{**decoder, "attention": self.mask})

    def __call__(self, graph: Owner, source: Array, target: Array, read: int, written: int) -> Node:
        model = self.model
        outputs = recurrent(
            model.encoder, model.dropout(model.source_embedding(graph, source)), read
        )
        state: tuple[Node | int, ...] = model._starts_at_zero
        if model.bridges:
            summary = F.concat(last_states(model.encoder, outputs, read))
            mapped = [bridge(summary) for bridge in model.bridges]
            state = (*[y if k % 2 else F.tanh(y) for k, y in enumerate(mapped)], state[-1])
        keys, values = model.decoder.attention.keys(outputs), model.decoder.context(outputs)
        if self.mask is not None and read:
            self.mask.follow(graph)
            memory = (self.mask.keys(keys, read), values)
            decoder = self.decoder
        else:
            memory, decoder = (keys[:read], values[:read]), model.decoder
        targets = np.concatenate((target, [model.end]))
        targets[written] = model.end
        inputs = model.target_embedding(graph, np.concatenate(([model.begin], target)))
        xs = model.dropout(inputs)
        feeds = scan(
            decoder_cell, xs, state, decoder, memory,
            recompute=model.recompute, return_state=False,
        )  # fmt: skip
        return F.cross_entropy(
            model.output(model.dropout(feeds)),
            ignored_after(targets, written + 1),
            label_smoothing=model.label_smoothing if model.training else 0.0,
            reduction="sum",
        )

    def collect(self) -> None:
        """Give the model's parameters the gradients that arrived at the mask's."""
        if self.mask is not None:
            self.mask.collect()


class MaskedAttention:
    """Additive attention in which keys of padding have weight 0, by one feature more.

    The feature is +20 in keys of words and -20 in those of padding, so that its tanh is 1 and -1,
    and C in `vector`: scores of words grow by C, those of padding shrink by it, and
    C = Σ|vector| + 25 is more than all other features can make up for. The kernels are the model's,
    one column wider; the parameters are copies with that column, whose gradients `collect` returns.
    """

    def __init__(self, attention: AdditiveAttention) -> None:
        self._own = (attention.query.weight, attention.vector)
        self._wide: tuple[Parameter, ...] = ()
        self._graph = -1

    def follow(self, graph: Owner) -> None:
        """Copy the model's parameters as they are now, once a graph."""
        if graph.uid == self._graph:
            return
        self._graph = graph.uid
        wide = []
        for parameter in self._own:
            wide.append(np.zeros((parameter.shape[0] + 1, *parameter.shape[1:]), parameter.dtype))
            wide[-1][:-1] = parameter.numpy()
        wide[1][-1] = HIDDEN + np.abs(wide[1]).sum()
        first = self._own[0]
        known = self._wide and self._wide[0].dtype == first.dtype
        if not (known and self._wide[0].device == first.device):
            names = [parameter.name for parameter in self._own]
            parameters = [Parameter(array, name) for array, name in zip(wide, names, strict=True)]
            self._wide = tuple([parameter.to(first.device) for parameter in parameters])
        for parameter, array in zip(self._wide, wide, strict=True):
            parameter.assign(array)

    def keys(self, keys: Node, length: int) -> Node:
        """The keys with the feature: (T_max, D + 1)."""
        feature = np.full((keys.rows, 1), -SATURATED)
        feature[:length] = SATURATED
        return F.concat([keys, F.input(keys.graph, feature)])

    def attend(self, query: Node, memory: tuple[Node, ...]) -> Node:
        """The result of `Attention.attend` in a step of the decoder."""
        weight, vector = self._wide
        keys, values = memory
        return F.additive_attention(F.linear(query, weight), keys, values, vector)

    def collect(self) -> None:
        """Add the copies' gradients to those of the model's parameters, but for the feature's."""
        for parameter, copy in zip(self._own, self._wide, strict=False):
            if copy.grad is not None and not parameter.frozen:
                gradient: Array = copy.grad[:-1]  # type: ignore[index]
                if parameter.grad is None:
                    parameter.grad = arrays.snapshot(gradient)
                else:
                    arrays.accumulate(gradient, parameter.grad)  # type: ignore[arg-type]
            copy.grad = None
