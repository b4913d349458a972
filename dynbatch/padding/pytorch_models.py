"""The models of `dynbatch memory` in PyTorch, padded as its tutorials pad: for bytes, not values.

Read by `importlib` where PyTorch is installed. The formulas are those of `models.Seq2Seq`,
`padding.Tagger` and `padding.LanguageModel`. What can leave the decoder's loop has left it: keys
and values are projected once, and so are all logits, with one cross-entropy over all steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dynbatch.models.attention import AdditiveAttention
from dynbatch.models.module import Module
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.padded_model import PaddingError
from dynbatch.padding.targets import IGNORED

Tensor = Any
Sentences = Sequence[Any]


class TorchModel:
    """A model of PyTorch with the sizes of one of dynbatch's, at random values.

    Args:
        model: a `Seq2Seq`, `Tagger` or `LanguageModel`.

    Raises:
        PaddingError: another model; PyTorch's form of it is the user's to write.
        ImportError:  PyTorch is not installed.
    """

    def __init__(self, model: Module) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.nn = self.torch.nn
        self.device = "cuda" if model.parameters()[0].device.is_cuda else "cpu"
        self.modules: list[Any] = []
        made: Callable[..., Any]
        if type(model) is Tagger:
            made = self._tagger(model)
        elif type(model) is LanguageModel:
            made = self._language_model(model)
        elif type(model) is Seq2Seq and isinstance(model.decoder.attention, AdditiveAttention):
            made = self._seq2seq(model)
        else:
            raise PaddingError(
                f"{type(model).__name__} has no form in PyTorch here.\n"
                "  fix:  leave it out, or give your own model's step to "
                "dynbatch.padding.pytorch.measure_torch"
            )
        self.loss = made
        self.parameters = [p for module in self.modules for p in module.parameters()]

    def padded(self, sentences: Sentences, filler: int) -> Tensor:
        """(T, B) ids."""
        tensors = [self.torch.from_numpy(np.asarray(s, np.int64)) for s in sentences]
        pad = self.nn.utils.rnn.pad_sequence
        return pad(tensors, padding_value=filler).to(self.device)

    def _add(self, module: Any) -> Any:
        self.modules.append(module.to(self.device))
        return module

    def _embedding(self, weight: Any) -> Any:
        return self._add(self.nn.Embedding(*weight.shape))

    def _linear(self, weight: Any, bias: bool = False) -> Any:
        return self._add(self.nn.Linear(weight.shape[1], weight.shape[0], bias=bias))

    def _lstm(self, lstm: Any) -> Any:
        return self._add(
            self.nn.LSTM(
                lstm.input_size, lstm.hidden_size, lstm.layers, bidirectional=lstm.bidirectional
            )
        )

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Summed over what counts, mean over the sentences (columns)."""
        total = self.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / targets.shape[1]

    def _tagger(self, model: Tagger) -> Callable[..., Any]:
        embedding, lstm = self._embedding(model.embedding.weight), self._lstm(model.encoder)
        output = self._linear(model.output.weight, bias=True)

        def prepare(examples: Sentences) -> Callable[[], Tensor]:
            words, tags = zip(*examples, strict=True)
            read, targets = self.padded(words, 0), self.padded(tags, IGNORED)
            return lambda: self._cross_entropy(output(lstm(embedding(read))[0]), targets)

        return prepare

    def _language_model(self, model: LanguageModel) -> Callable[..., Any]:
        embedding, lstm = self._embedding(model.embedding.weight), self._lstm(model.encoder)
        output = self._linear(model.output.weight, bias=True)

        def prepare(examples: Sentences) -> Callable[[], Tensor]:
            pairs = [model.read_and_written(ids) for (ids,) in examples]
            read = self.padded([pair[0] for pair in pairs], 0)
            targets = self.padded([pair[1] for pair in pairs], IGNORED)
            return lambda: self._cross_entropy(output(lstm(embedding(read))[0]), targets)

        return prepare

    def _seq2seq(self, model: Seq2Seq) -> Callable[..., Any]:
        torch, decoder, attention = self.torch, model.decoder, model.decoder.attention
        assert isinstance(attention, AdditiveAttention)
        source = self._embedding(model.source_embedding.weight)
        target = self._embedding(model.target_embedding.weight)
        encoder, output = self._lstm(model.encoder), self._linear(model.output.weight, bias=True)
        hidden = decoder.state.weight.shape[0]
        widths = [layer.weight_ih.shape[1] for layer in decoder.layers]
        widths[0] += hidden  # the feed beside the word
        cells = [self._add(self.nn.LSTMCell(width, hidden)) for width in widths]
        key, query = self._linear(attention.key.weight), self._linear(attention.query.weight)
        score = self._linear(attention.vector.value[None])
        context, state = self._linear(decoder.context.weight), self._linear(decoder.state.weight)
        bridges = [self._linear(bridge.weight, bias=True) for bridge in model.bridges]

        def begin(memory: Tensor, last: Tensor) -> list[list[Tensor]]:
            if not bridges:
                zeros = memory.new_zeros(memory.shape[0], hidden)
                return [[zeros, zeros] for _ in cells]
            summary = torch.cat((last[-2], last[-1]), dim=1)
            mapped = [bridge(summary) for bridge in bridges]
            return [[torch.tanh(h), c] for h, c in zip(mapped[::2], mapped[1::2], strict=True)]

        def run(read: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
            outputs, (last, _) = encoder(source(read))
            memory = outputs.transpose(0, 1)  # (B, S, 2 H)
            keys, values, states = key(memory), context(memory), begin(memory, last)
            feed, feeds = memory.new_zeros(memory.shape[0], hidden), []
            for word in target(inputs).unbind():
                x = torch.cat((word, feed), dim=1)
                for k, cell in enumerate(cells):
                    states[k] = cell(x, states[k])
                    x = states[k][0]
                scores = score((keys + query(x).unsqueeze(1)).tanh_()).squeeze(2) + mask
                weights = torch.softmax(scores, dim=1).unsqueeze(1)
                feed = torch.tanh(torch.bmm(weights, values).squeeze(1) + state(x))
                feeds.append(feed)
            return self._cross_entropy(output(torch.stack(feeds)), targets)

        def prepare(examples: Sentences) -> Callable[[], Tensor]:
            sources, targets = zip(*examples, strict=True)
            read = self.padded(sources, 0)
            inputs = self.padded([np.r_[model.begin, ids] for ids in targets], 0)
            outputs = self.padded([np.r_[ids, model.end] for ids in targets], IGNORED)
            empty = self.padded([np.zeros(len(ids)) for ids in sources], 1).T.bool()
            mask = torch.zeros(empty.shape, device=self.device).masked_fill_(empty, -torch.inf)
            return lambda: run(read, inputs, outputs, mask)

        return prepare
