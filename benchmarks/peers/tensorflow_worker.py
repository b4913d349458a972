"""The TensorFlow side of the tagger, in a process of its own: a request a line, an answer a line.

Run by `tensorflow_process` as a file, not as a module, so that it needs nothing but TensorFlow and
NumPy and may run under another Python. Requests and answers are those of `dynet_worker`; "build"
has "form", "padded" or "ragged", and "threads" besides.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# TensorFlow writes about itself when imported: keep standard output for answers.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

Values = Mapping[str, Any]
IGNORED = -1


class Tagger:
    """Embedding, bi-LSTM, linear layer, each with PyTorch's values; Keras has the same gates.

    Padded: the LSTM reads padding as words, as `pytorch-padded` does. Ragged: embedding, output
    layer and loss see the values of a `RaggedTensor`, no padding; Keras's LSTM takes none, so that
    it gets them padded, with a mask.
    """

    def __init__(self, values: Values, is_ragged: bool) -> None:
        table = values["embedding.weight"]
        hidden = values["encoder.weight_hh_l0"].shape[1]
        self._is_ragged = is_ragged
        self._table = tf.Variable(table)
        self._left, self._right = [
            keras.layers.LSTM(hidden, return_sequences=True, go_backwards=backwards)
            for backwards in (False, True)
        ]
        for layer, suffix in ((self._left, ""), (self._right, "_reverse")):
            layer.build((None, None, table.shape[1]))
            names = ("weight_ih", "weight_hh", "bias_ih")
            layer.set_weights([values[f"encoder.{name}_l0{suffix}"].T for name in names])
        self._weight = tf.Variable(values["output.weight"].T)
        self._bias = tf.Variable(values["output.bias"])
        self.variables = [
            self._table, self._weight, self._bias,
            *self._left.trainable_variables, *self._right.trainable_variables,
        ]  # fmt: skip

    def prepare(self, sentences: Sequence[Sequence[Sequence[int]]]) -> tuple[Any, ...]:
        """Words and tags, (B, T) or of a ragged tensor, and the sentences' lengths."""
        words, tags = [[each[k] for each in sentences] for k in (0, 1)]
        lengths = [len(each) for each in words]
        if self._is_ragged:
            flat = [np.concatenate(part).astype(np.int32) for part in (words, tags)]
            return tf.constant(flat[0]), tf.constant(flat[1]), tf.constant(lengths, tf.int64)
        arrays = [np.full((len(words), max(lengths)), fill, np.int32) for fill in (0, IGNORED)]
        for array, part in zip(arrays, (words, tags), strict=True):
            for row, each in zip(array, part, strict=True):
                row[: len(each)] = each
        return tf.constant(arrays[0]), tf.constant(arrays[1]), tf.constant(lengths, tf.int64)

    def loss(self, words: Any, tags: Any, lengths: Any) -> Any:
        """Cross-entropy summed over the words and averaged over sentences."""
        embedded = tf.nn.embedding_lookup(self._table, words)
        mask = None
        if self._is_ragged:
            ragged = tf.RaggedTensor.from_row_lengths(embedded, lengths, validate=False)
            embedded, mask = ragged.to_tensor(), tf.sequence_mask(lengths)
        left, right = self._left(embedded, mask=mask), self._right(embedded, mask=mask)
        states = tf.concat([left, right[:, ::-1]], axis=2)
        if self._is_ragged:
            states = tf.boolean_mask(states, mask)
        logits = states @ self._weight + self._bias
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(tags, 0), logits)
        counted = tf.where(tags == IGNORED, 0.0, losses)
        return tf.reduce_sum(counted) / tf.cast(tf.shape(lengths)[0], tf.float32)


class Worker:
    def __init__(self, values: str, form: str, learning_rate: float, threads: int) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        with np.load(values) as arrays:
            self._tagger = Tagger(dict(arrays), form == "ragged")
        self._adam = keras.optimizers.Adam(learning_rate, epsilon=1e-8)
        self._adam.build(self._tagger.variables)
        ids = tf.TensorSpec([None] if form == "ragged" else [None, None], tf.int32)
        signature = [ids, ids, tf.TensorSpec([None], tf.int64)]  # traced once for all batches
        self._loss = tf.function(self._tagger.loss, input_signature=signature)
        self._train = tf.function(self._step, input_signature=signature)

    def run(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Compute the loss and, if asked to train, go back and update."""
        prepared = self._tagger.prepare(request["sentences"])
        start = time.perf_counter()
        loss = (self._train if request["do"] == "train" else self._loss)(*prepared)
        return {"loss": float(loss), "seconds": time.perf_counter() - start}

    def _step(self, words: Any, tags: Any, lengths: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._tagger.loss(words, tags, lengths)
        gradients = tape.gradient(loss, self._tagger.variables)
        self._adam.apply(gradients)
        return loss


def main() -> None:
    worker: Callable[[Mapping[str, Any]], dict[str, float]] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "build":
            names = ("values", "form", "learning_rate", "threads")
            worker = Worker(*[request[name] for name in names]).run
            answer: dict[str, Any] = {"version": f"{tf.__version__} (Keras {keras.__version__})"}
        elif worker is not None:
            answer = worker(request)
        _answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
