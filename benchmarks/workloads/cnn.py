"""The text CNN in dynbatch: the classifier of `dynbatch train`, as `examples.text_cnn` has it."""

from __future__ import annotations

from collections.abc import Mapping

import dynbatch as db
from benchmarks.networks import WINDOWS, Array, CnnSizes
from benchmarks.workloads.contender import DynbatchContender, load_values
from dynbatch import nodes as F
from dynbatch.tasks.classification import TextClassifier


class DynbatchCnn(DynbatchContender):
    """The network of `CnnSizes`."""

    def __init__(self, sizes: CnnSizes, values: Mapping[str, Array], device: str = "cpu") -> None:
        self._model = TextClassifier(sizes.vocabulary, sizes.classes, sizes.embedding, sizes.hidden)
        load_values(self._model, to_dynbatch(values))
        super().__init__(self._model.parameters(), device)

    def sentence_loss(self, graph: db.Graph, source: Array, target: Array) -> db.Node:
        return F.cross_entropy(self._model(graph, source), int(target[0]))


def to_dynbatch(values: Mapping[str, Array]) -> dict[str, Array]:
    """The values by the model's names; a filter is a row over the words of its window, in order."""
    named = {
        "words.weight": values["embedding.weight"],
        "network.project.weight": values["output.weight"],
        "network.project.bias": values["output.bias"],
    }
    for k in range(len(WINDOWS)):
        weight = values[f"convolutions.{k}.weight"]  # (filters, D, words)
        named[f"network.filters.{k}.weight"] = weight.transpose(0, 2, 1).reshape(len(weight), -1)
        named[f"network.filters.{k}.bias"] = values[f"convolutions.{k}.bias"]
    return named
