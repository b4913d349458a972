"""PyTorch's same model, padded as its tutorials pad, measured for a `Comparison`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from tqdm import tqdm

from dynbatch.backend import Array
from dynbatch.kernels.runtime.precision import FULL, SHORT
from dynbatch.models.attention import AdditiveAttention
from dynbatch.models.module import Module
from dynbatch.models.seq2seq import Seq2Seq
from dynbatch.padding import batches as epoch
from dynbatch.padding.batches import Lengths, Sample
from dynbatch.padding.forms import Form
from dynbatch.padding.networks import LanguageModel, Tagger
from dynbatch.padding.padded_model import PaddingError, lengths_of
from dynbatch.padding.pytorch import Tensor, TorchStep, import_torch, measure_torch
from dynbatch.padding.pytorch_networks import decode, labelling_network, mean_loss, seq2seq_network
from dynbatch.padding.targets import IGNORED

Examples = Sequence[tuple[Array, ...]]


class TorchModel:
    """A PyTorch network with the sizes of one of dynbatch's models, at random values.

    Args:
        model:     a `Seq2Seq` with additive attention, a `Tagger` or a `LanguageModel`.
        precision: "bfloat16" computes under `torch.autocast`.

    Attributes:
        loss: takes the examples of a mini-batch, and gives a function that computes their loss.

    Raises:
        PaddingError: another model; PyTorch's form of it is the user's to write.
        ImportError:  PyTorch is not installed.
    """

    loss: Callable[[Examples], Callable[[], Tensor]]

    def __init__(self, model: Module, precision: str = FULL) -> None:
        self.torch = import_torch()
        self._is_short = precision == SHORT
        self.device = "cuda" if model.parameters()[0].device.is_cuda else "cpu"
        self.model = model
        if type(model) is Tagger or type(model) is LanguageModel:
            lstm = model.encoder
            network = labelling_network(
                model.embedding.weight.shape[0], model.output.weight.shape[0],
                lstm.input_size, lstm.hidden_size, lstm.layers, lstm.bidirectional,
            )  # fmt: skip
            self.loss = self._labels_loss
        elif type(model) is Seq2Seq and isinstance(model.decoder.attention, AdditiveAttention):
            lstm = model.encoder
            network = seq2seq_network(
                model.source_embedding.weight.shape[0], model.target_embedding.weight.shape[0],
                lstm.input_size, lstm.hidden_size, lstm.layers, bridge=bool(model.bridges),
            )  # fmt: skip
            self.loss = self._pairs_loss
        else:
            raise PaddingError(
                f"{type(model).__name__} has no form in PyTorch here.\n"
                "  fix:  leave it out, or give your own model's step to "
                "dynbatch.padding.pytorch.measure_torch"
            )
        self.network = network.to(self.device)
        self.parameters = list(network.parameters())

    def _labels_loss(self, examples: Examples) -> Callable[[], Tensor]:
        model, network = self.model, self.network
        if isinstance(model, LanguageModel):
            examples = [model.read_and_written(ids) for (ids,) in examples]
        sentences, targets = zip(*examples, strict=True)
        words, labels = self._padded(sentences, 0), self._padded(targets, IGNORED)

        def loss() -> Tensor:
            with self.autocast():
                logits = network.output(network.encoder(network.embedding(words))[0])
                return mean_loss(logits.flatten(0, 1), labels.flatten(), len(examples))

        return loss

    def _pairs_loss(self, examples: Examples) -> Callable[[], Tensor]:
        model, network, torch = self.model, self.network, self.torch
        assert isinstance(model, Seq2Seq)
        sources, targets = zip(*examples, strict=True)
        words = self._padded(sources, 0)
        inputs = self._padded([np.r_[model.begin, ids] for ids in targets], 0)
        labels = self._padded([np.r_[ids, model.end] for ids in targets], IGNORED)
        is_padding = self._padded([np.zeros(len(ids)) for ids in sources], 1).T.bool()
        mask = torch.zeros(is_padding.shape, device=self.device).masked_fill_(
            is_padding, -torch.inf
        )

        def loss() -> Tensor:
            with self.autocast():
                outputs, (last, _) = network.encoder(network.source_embedding(words))
                feeds = decode(network, inputs, outputs.transpose(0, 1), mask, last)
                return mean_loss(network.output(feeds), labels.flatten(), len(examples))

        return loss

    def autocast(self) -> Any:
        """A block in which PyTorch chooses bfloat16 or float32 for each operator, if it is to."""
        return self.torch.autocast(self.device, self.torch.bfloat16, enabled=self._is_short)

    def _padded(self, sentences: Sequence[Array], filler: int) -> Tensor:
        """(T, B) ids."""
        tensors = [self.torch.from_numpy(np.asarray(s, np.int64)) for s in sentences]
        pad = self.torch.nn.utils.rnn.pad_sequence
        return pad(tensors, padding_value=filler).to(self.device)


def torch_form(name: str, chosen: Sample, steps: Sequence[TorchStep], lengths: Lengths) -> Form:
    """Sum up the measured steps of a sample's batches for a `Comparison`."""
    count = len(chosen.spread)
    peak = max(steps, key=lambda step: step.peak_bytes)
    speeds = [
        epoch.tokens(batch, lengths) / step.seconds
        for batch, step in zip(chosen.batches, steps, strict=True)
    ]
    computed = sum([epoch.cells(batch, lengths) for batch in chosen.spread])
    real = sum([epoch.tokens(batch, lengths) for batch in chosen.spread])
    return Form(
        name=name,
        peak_bytes=peak.peak_bytes,
        mean_bytes=fmean([step.peak_bytes for step in steps[:count]]),
        by_cause={} if peak.saved_bytes is None else {"kept for backward": peak.saved_bytes},
        cells_a_token=computed / real,
        tokens_per_second=median(speeds[:count]),
        gradient_bytes=max([step.gradient_bytes for step in steps]),
    )


def torch_forms(
    model: Module,
    sentences: Examples,
    batch_size: int,
    num_batches: int,
    seed: int,
    precision: str = FULL,
) -> list[Form]:
    """PyTorch's same model on the batches that `compare_padding` measures with these arguments; in
    bfloat16 under `torch.autocast`.

    Raises:
        PaddingError: PyTorch's form of this model is not known.
        ImportError:  PyTorch is not installed.
    """
    peer = TorchModel(model, precision)
    adam = peer.torch.optim.Adam(peer.parameters, lr=0.0)
    lengths = [lengths_of(example) for example in sentences]
    orders = {
        "pytorch, padded": epoch.random_batches(lengths, batch_size, seed),
        "pytorch, bucketed": epoch.bucketed_batches(lengths, batch_size),
    }
    forms = []
    for name, batches in orders.items():
        chosen = epoch.sample(batches, lengths, num_batches)
        steps = [
            measure_torch(peer.loss([sentences[i] for i in batch]), peer.parameters, adam.step)
            for batch in tqdm(chosen.batches, desc=name, unit="step", ncols=80)
        ]
        forms.append(torch_form(name, chosen, steps, lengths))
    return forms
