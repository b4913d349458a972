"""The DyNet side, in a process of its own: reads one request a line, answers one line each.

Run by `dynet_process` as a file, not as a module, so that it needs nothing but DyNet and NumPy and
may run under another Python. Requests and answers are JSON objects, one a line:
    {"do": "build", "workload": "tagger", "values": "/tmp/….npz", "learning_rate": 0.001}
    {"do": "loss" | "train", "sentences": [[[id, …], [id, …]], …]}
        -> {"loss": nats, "seconds": wall clock of graph, forward, backward and update}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# DyNet reads its settings when imported, and both print to standard output: keep that for answers.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import dynet_config  # noqa: E402

dynet_config.set(mem=int(os.environ.get("DYNET_MEM_MB", "4000")), autobatch=1, random_seed=1)

import dynet as dy  # noqa: E402
import numpy as np  # noqa: E402

Values = Mapping[str, Any]
Expression = Any
START_SYMBOL = 0


class Lstm:
    """One direction, one layer, with PyTorch's values put into DyNet's layout."""

    def __init__(self, collection: Any, values: Values, suffix: str, prefix: str = "") -> None:
        names = ("weight_ih", "weight_hh", "bias_ih")
        w_x, w_h, bias = (_to_dynet_gates(values[f"{prefix}{name}{suffix}"]) for name in names)
        hidden = w_h.shape[1]
        bias[hidden : 2 * hidden] -= 1  # DyNet adds 1 to the forget gate itself
        self.builder = dy.VanillaLSTMBuilder(1, w_x.shape[1], hidden, collection)
        for parameter, value in zip(
            self.builder.get_parameters()[0], (w_x, w_h, bias), strict=True
        ):
            parameter.set_value(value)


class BiLstm:
    def __init__(self, collection: Any, values: Values) -> None:
        self._forward = Lstm(collection, values, "_l0", "encoder.").builder
        self._backward = Lstm(collection, values, "_l0_reverse", "encoder.").builder

    def __call__(self, xs: Sequence[Expression]) -> list[Expression]:
        left = self._forward.initial_state().transduce(xs)
        right = self._backward.initial_state().transduce(xs[::-1])[::-1]
        return [dy.concatenate([a, b]) for a, b in zip(left, right, strict=True)]


class Tagger:
    """A sentence's loss, word by word: autobatching merges the words of all sentences."""

    def __init__(self, collection: Any, values: Values) -> None:
        self._embedding = _table(collection, values["embedding.weight"])
        self._encoder = BiLstm(collection, values)
        self._weight = collection.parameters_from_numpy(values["output.weight"])
        self._bias = collection.parameters_from_numpy(values["output.bias"])

    def losses(self, words: Sequence[int], tags: Sequence[int]) -> list[Expression]:
        states = self._encoder([self._embedding[word] for word in words])
        return [
            dy.pickneglogsoftmax(dy.affine_transform([self._bias, self._weight, state]), tag)
            for state, tag in zip(states, tags, strict=True)
        ]


class Seq2Seq:
    """Encoder, attention over the sentence's own length, decoder with input feeding."""

    def __init__(self, collection: Any, values: Values) -> None:
        self._source = _table(collection, values["source_embedding.weight"])
        self._target = _table(collection, values["target_embedding.weight"])
        self._encoder = BiLstm(collection, values)
        self._cell = Lstm(collection, values, "", "cells.0.").builder

        def weights(*names: str) -> list[Any]:
            return [collection.parameters_from_numpy(values[name]) for name in names]

        self._key, self._query, self._score = weights("key.weight", "query.weight", "score")
        self._context, self._state = weights("context.weight", "state.weight")
        self._weight, self._bias = weights("output.weight", "output.bias")
        self._hidden = len(values["score"])

    def losses(self, words: Sequence[int], targets: Sequence[int]) -> list[Expression]:
        memory = dy.concatenate_cols(self._encoder([self._source[word] for word in words]))
        keys, values = self._key * memory, self._context * memory  # (H, S)
        state = self._cell.initial_state()
        feed = dy.zeros(self._hidden)
        losses = []
        for read, written in zip((START_SYMBOL, *targets[:-1]), targets, strict=True):
            state = state.add_input(dy.concatenate([self._target[read], feed]))
            query = self._query * state.output()
            scores = dy.transpose(dy.tanh(dy.colwise_add(keys, query))) * self._score  # (S,)
            context = values * dy.softmax(scores)  # (H,)
            feed = dy.tanh(context + self._state * state.output())
            logits = dy.affine_transform([self._bias, self._weight, feed])
            losses.append(dy.pickneglogsoftmax(logits, written))
        return losses


class TreeLstm:
    """A state (h, c) for each node of the tree, bottom up, and its class."""

    def __init__(self, collection: Any, values: Values) -> None:
        self._embedding = _table(collection, values["embedding.weight"])
        self._leaf, self._compose, self._output = (
            [
                collection.parameters_from_numpy(values[f"{name}.{kind}"])
                for kind in ("bias", "weight")
            ]
            for name in ("leaf", "compose", "output")
        )
        self._hidden = len(values["leaf.bias"]) // 3

    def losses(
        self, words: Sequence[int], tree: Sequence[Sequence[int]], classes: Sequence[int]
    ) -> list[Expression]:
        states = [self._of_word(self._embedding[word]) for word in words]
        for left, right in tree:
            states.append(self._of_pair(states[left], states[right]))
        logits = [dy.affine_transform([*self._output, h]) for h, _ in states]
        return [dy.pickneglogsoftmax(z, true) for z, true in zip(logits, classes, strict=True)]

    def _of_word(self, x: Expression) -> tuple[Expression, Expression]:
        i, o, u = self._parts(dy.affine_transform([*self._leaf, x]), 3)
        c = dy.cmult(dy.logistic(i), dy.tanh(u))
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def _of_pair(self, left: Sequence[Expression], right: Sequence[Expression]) -> Any:
        h = dy.concatenate([left[0], right[0]])
        i, o, f_left, f_right, u = self._parts(dy.affine_transform([*self._compose, h]), 5)
        kept = dy.cmult(dy.logistic(f_left), left[1]) + dy.cmult(dy.logistic(f_right), right[1])
        c = dy.cmult(dy.logistic(i), dy.tanh(u)) + kept
        return dy.cmult(dy.logistic(o), dy.tanh(c)), c

    def _parts(self, gates: Expression, count: int) -> list[Expression]:
        hidden = self._hidden
        return [dy.pickrange(gates, k * hidden, (k + 1) * hidden) for k in range(count)]


NETWORKS = {"tagger": Tagger, "seq2seq": Seq2Seq, "tree": TreeLstm}


class Worker:
    def __init__(self, workload: str, values: str, learning_rate: float) -> None:
        # Kept: DyNet frees the parameters with their collection, whoever still uses them.
        self._collection = collection = dy.ParameterCollection()
        with np.load(values) as arrays:
            self._network: Any = NETWORKS[workload](collection, dict(arrays))
        self._trainer = dy.AdamTrainer(collection, learning_rate)
        self._trainer.set_clip_threshold(-1)  # DyNet clips by default; nobody else here does

    def run(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Build the graph, run it, and, if asked to train, go back and update."""
        sentences = request["sentences"]
        start = time.perf_counter()
        dy.renew_cg()
        losses = [loss for sentence in sentences for loss in self._network.losses(*sentence)]
        mean = dy.esum(losses) / len(sentences)
        loss = mean.value()
        if request["do"] == "train":
            mean.backward()
            self._trainer.update()
        return {"loss": loss, "seconds": time.perf_counter() - start}


def _table(collection: Any, value: Any) -> Any:
    table = collection.add_lookup_parameters(value.shape)
    table.init_from_array(value)
    return table


def _to_dynet_gates(value: Any) -> Any:
    """Rows i, f, g, o become i, f, o, g."""
    i, f, g, o = np.split(value, 4)
    return np.concatenate([i, f, o, g])


def main() -> None:
    worker: Callable[[Mapping[str, Any]], dict[str, float]] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "build":
            worker = Worker(request["workload"], request["values"], request["learning_rate"]).run
            answer: dict[str, Any] = {"version": f"{dy.__version__} (autobatch, Eigen, 1 thread)"}
        elif worker is not None:
            answer = worker(request)
        _answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
