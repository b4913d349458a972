"""The binary Tree-LSTM batched by hand on dynbatch's kernels: beside it, what automation costs.

No graph and no nodes: arrays of all words and of each level, a backward pass written out, one
product for the gradient of each weight, buffers that stay from step to step. Which nodes make a
level is found beforehand (`trees.levels`), and not timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

import dynbatch as db
from benchmarks.measure import Contender
from benchmarks.networks import LEARNING_RATE, Array, TreeSizes
from benchmarks.peers.worker_process import PeerUnavailable
from benchmarks.trees import TreeBatch, levels
from dynbatch import optim
from dynbatch.backend import spec_of
from dynbatch.kernels import arrays, blas
from dynbatch.kernels.losses import cross_entropy
from dynbatch.kernels.rows import gather_rows, sum_rows_by_id
from dynbatch.kernels.runtime.parallel import one_blas_thread
from dynbatch.kernels.unary.activations import sigmoid
from dynbatch.testing.precision import dense_gradient


@dataclass(frozen=True)
class Prepared:
    """A batch as arrays. Nodes are numbered as in `trees.Levels.nodes`: words, then inner nodes.

    Args:
        ids:      (W,) of the words.
        classes:  (N,) of all nodes.
        children: for each level, the deepest first, (2n,) children of its n inner nodes.
        roots:    (K,) one for each sentence.
    """

    ids: Array
    classes: Array
    children: list[Array]
    roots: Array


@dataclass
class Buffers:
    """Arrays that are used again: memory that was never touched costs page faults."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def rows(self, name: str, count: int, width: int) -> Array:
        """(count, width), with what was last written to it."""
        size, found = count * width, self.arrays.get(name)
        if found is None or found.size < size:
            found = self.arrays[name] = np.empty(size + size // 4, np.float32)
        return found[:size].reshape(count, width)


class HandBatchedTree(Contender):
    """Forward and backward over whole levels; Adam as dynbatch's side has it."""

    def __init__(self, sizes: TreeSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        if device != "cpu":
            raise PeerUnavailable("it is written for the CPU.")
        self._hidden = sizes.hidden
        self._parameters = {name: db.Parameter(v.copy(), name) for name, v in values.items()}
        self._adam = optim.Adam(list(self._parameters.values()), lr=LEARNING_RATE)
        self._buffers = Buffers()

    def prepare(self, batch: TreeBatch) -> Prepared:
        found = levels(batch)
        children = found.children()
        return Prepared(
            ids=np.concatenate(batch.sources)[found.words],
            classes=np.concatenate(batch.targets)[found.nodes],
            children=children,
            roots=np.setdiff1d(np.arange(batch.num_nodes), np.concatenate([[], *children])),
        )

    def loss(self, prepared: Prepared) -> float:
        return self._run(prepared, with_gradients=False)

    def train(self, prepared: Prepared) -> float:
        loss = self._run(prepared, with_gradients=True)
        self._adam.step()
        return loss

    def gradients(self, prepared: Prepared) -> tuple[float, dict[str, Array]]:
        """The loss and its gradients by name, dense; no update."""
        loss = self._run(prepared, with_gradients=True)
        named = self._parameters.items()
        found = {name: dense_gradient(parameter) for name, parameter in named}
        self._adam.zero_grad()
        return loss, found

    def _run(self, batch: Prepared, with_gradients: bool) -> float:
        """The loss; with gradients, those of all parameters besides."""
        rows, hidden, words = self._buffers.rows, self._hidden, len(batch.ids)
        h, c, dh, dc = (rows(name, len(batch.classes), hidden) for name in ("h", "c", "dh", "dc"))
        with one_blas_thread():
            self._words_forward(batch.ids, h[:words], c[:words])
            self._levels_forward(batch.children, words, h, c)
            loss = self._loss(batch, h, dh if with_gradients else None)
            if with_gradients:
                dc[batch.roots] = 0
                self._levels_backward(batch.children, words, dh, dc)
                self._words_backward(batch.ids, dh[:words], dc[:words])
        return loss

    def _value(self, name: str) -> Array:
        return self._parameters[name].value

    def _transposed(self, name: str) -> Array:
        return np.ascontiguousarray(self._value(name).T)

    def _gradient(self, name: str) -> Array:
        """The array that a parameter's gradient is to be written to."""
        parameter = self._parameters[name]
        parameter.grad = parameter.gradient_buffer()
        return parameter.grad

    # Words ----------------------------------------------------------------------------------------

    def _words_forward(self, ids: Array, h: Array, c: Array) -> None:
        rows, table = self._buffers.rows, self._value("embedding.weight")
        embedded = rows("embedded", len(ids), table.shape[1])
        gates = rows("word gates", len(ids), 3 * self._hidden)
        gather_rows(table, ids, embedded)
        blas.matmul(embedded, self._transposed("leaf.weight"), gates)
        arrays.add_bias(gates, self._value("leaf.bias"))
        i, o, u = self._activated(gates)
        np.multiply(i, u, out=c)
        np.multiply(o, np.tanh(c, out=rows("word tanh", *c.shape)), out=h)

    def _words_backward(self, ids: Array, dh: Array, dc: Array) -> None:
        rows, weight = self._buffers.rows, self._value("leaf.weight")
        gates, dgates = (
            rows(name, len(ids), len(weight)) for name in ("word gates", "word dgates")
        )
        self._cell_backward(dh, dc, rows("word tanh", *dc.shape), gates, dgates)
        embedded = rows("embedded", len(ids), weight.shape[1])
        blas.matmul_outer(embedded, dgates, self._gradient("leaf.weight"))
        arrays.sum_rows(dgates, self._gradient("leaf.bias"))
        blas.matmul(dgates, weight, embedded)
        table = self._parameters["embedding.weight"]
        table.grad = db.RowSparse(*sum_rows_by_id(ids, embedded), table.shape)

    # Inner nodes ----------------------------------------------------------------------------------

    def _of_inner(self, count: int) -> tuple[Array, ...]:
        """Values of inner nodes for backward: both children's h and c, gates, tanh(c)."""
        widths = {"h pairs": 2, "c pairs": 2, "gates": 5, "tanh": 1}
        return tuple(
            self._buffers.rows(name, count, width * self._hidden) for name, width in widths.items()
        )

    def _levels_forward(self, levels: list[Array], words: int, h: Array, c: Array) -> None:
        hidden, weight = self._hidden, self._transposed("compose.weight")
        whole = self._of_inner(len(h) - words)
        start = 0
        for children in levels:
            end = start + len(children) // 2
            h_pairs, c_pairs, gates, tanh = (array[start:end] for array in whole)
            gather_rows(h, children, h_pairs.reshape(-1, hidden))
            gather_rows(c, children, c_pairs.reshape(-1, hidden))
            blas.matmul(h_pairs, weight, gates)
            arrays.add_bias(gates, self._value("compose.bias"))
            i, o, f_left, f_right, u = self._activated(gates)
            level = slice(words + start, words + end)
            np.multiply(i, u, out=c[level])
            c[level] += f_left * c_pairs[:, :hidden]
            c[level] += f_right * c_pairs[:, hidden:]
            np.multiply(o, np.tanh(c[level], out=tanh), out=h[level])
            start = end

    def _levels_backward(self, levels: list[Array], words: int, dh: Array, dc: Array) -> None:
        hidden, weight = self._hidden, self._value("compose.weight")
        whole = self._of_inner(len(dh) - words)
        all_dgates = self._buffers.rows("dgates", len(dh) - words, 5 * hidden)
        end = len(all_dgates)
        for children in reversed(levels):
            start = end - len(children) // 2
            h_pairs, c_pairs, gates, tanh = (array[start:end] for array in whole)
            dgates, level = all_dgates[start:end], slice(words + start, words + end)
            self._cell_backward(dh[level], dc[level], tanh, gates, dgates, c_pairs)
            f = gates[:, 2 * hidden : 4 * hidden].reshape(-1, 2, hidden)
            dc[children] = (dc[level, None] * f).reshape(-1, hidden)
            dh_pairs = self._buffers.rows("dh pairs", *h_pairs.shape)
            blas.matmul(dgates, weight, dh_pairs)
            dh[children] += dh_pairs.reshape(-1, hidden)
            end = start
        blas.matmul_outer(whole[0], all_dgates, self._gradient("compose.weight"))
        arrays.sum_rows(all_dgates, self._gradient("compose.bias"))

    # Both -----------------------------------------------------------------------------------------

    def _activated(self, sums: Array) -> list[Array]:
        """Gates i, o, two f's if they are there, and u from their sums, in place."""
        last = sums.shape[1] - self._hidden
        sigmoid.forward(sums[:, :last], sums[:, :last])
        np.tanh(sums[:, last:], out=sums[:, last:])
        return np.split(sums, sums.shape[1] // self._hidden, axis=1)

    def _cell_backward(
        self,
        dh: Array,
        dc: Array,
        tanh: Array,
        gates: Array,
        dgates: Array,
        c_pairs: Array | None = None,
    ) -> None:
        """Gradients of the gates' sums; what h adds to dc is added to it."""
        hidden, last = self._hidden, gates.shape[1] - self._hidden
        s, u = gates[:, :last], gates[:, last:]
        i, o = s[:, :hidden], s[:, hidden : 2 * hidden]
        ds, du = dgates[:, :last], dgates[:, last:]
        np.multiply(dh, tanh, out=ds[:, hidden : 2 * hidden])
        dc += (1 - tanh * tanh) * o * dh
        np.multiply(dc, u, out=ds[:, :hidden])
        if c_pairs is not None:
            pairs = (len(dc), 2, hidden)
            df = ds[:, 2 * hidden :].reshape(pairs)
            np.multiply(dc[:, None], c_pairs.reshape(pairs), out=df)
        ds *= s - s * s
        np.multiply(dc, i, out=du)
        du *= 1 - u * u

    def _loss(self, batch: Prepared, h: Array, dh: Array | None) -> float:
        """Mean of the sentences' losses; writes dh and the gradients of the last layer."""
        nodes, weight = len(h), self._value("output.weight")
        targets = cross_entropy.Targets(batch.classes, np.ones(nodes, np.float32))
        losses = self._buffers.rows("losses", 1, nodes)[0]
        elements = cross_entropy.workspace(spec_of(weight), nodes, len(weight))
        scratch = self._buffers.rows("scratch", 1, elements)[0]
        wanted = None
        if dh is not None:
            scale = np.full(nodes, 1 / len(batch.roots), np.float32)
            gradients = self._gradient("output.weight"), self._gradient("output.bias")
            wanted = cross_entropy.LossGradients(scale, dh, *gradients)
        bias = self._value("output.bias")
        cross_entropy.linear_cross_entropy(h, weight, bias, targets, losses, scratch, wanted)
        return float(losses.sum()) / len(batch.roots)
