"""Tagger, language model and sequence to sequence in PyTorch, for `dynbatch memory` and benchmarks.

Each network is a bare `nn.Module` that holds the layers, so that this file can be read where
PyTorch is not installed. The formulas are those of `padding.Tagger`, `padding.LanguageModel` and
`models.Seq2Seq`. What can leave the decoder's loop has left it: keys and values are projected once,
and so are all logits. A caller decides how to deal with lengths: padded, packed, or row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynbatch.padding.pytorch import Tensor, import_torch
from dynbatch.padding.targets import IGNORED

Network = Any
"""A `torch.nn.Module`."""


def labelling_network(
    vocabulary: int,
    labels: int,
    embed: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
) -> Network:
    """`embedding`, `encoder` (an LSTM) and `output`, which scores the labels of each token.

    A tagger if it is bidirectional; a language model if it is not and the labels are words.
    """
    nn = import_torch().nn
    network = nn.Module()
    network.embedding = nn.Embedding(vocabulary, embed)
    network.encoder = nn.LSTM(embed, hidden, layers, bidirectional=bidirectional)
    network.output = nn.Linear(hidden * (2 if bidirectional else 1), labels)
    return network


def seq2seq_network(
    source_vocabulary: int,
    target_vocabulary: int,
    embed: int,
    hidden: int,
    layers: int = 1,
    bridge: bool = False,
) -> Network:
    """The layers of `models.Seq2Seq` with additive attention; `bridges` may be empty.

    The layers of the decoder are `cells`, LSTM cells, of which the first reads the feed beside the
    word. `score` is a vector, whose value the caller sets.
    """
    torch = import_torch()
    nn = torch.nn
    network = nn.Module()
    network.source_embedding = nn.Embedding(source_vocabulary, embed)
    network.target_embedding = nn.Embedding(target_vocabulary, embed)
    network.encoder = nn.LSTM(embed, hidden, layers, bidirectional=True)
    widths = [embed + hidden, *[hidden] * (layers - 1)]
    network.cells = nn.ModuleList([nn.LSTMCell(width, hidden) for width in widths])
    network.bridges = nn.ModuleList(
        [nn.Linear(2 * hidden, hidden) for _ in range(2 * layers if bridge else 0)]
    )
    network.key = nn.Linear(2 * hidden, hidden, bias=False)
    network.query = nn.Linear(hidden, hidden, bias=False)
    network.score = nn.Parameter(torch.zeros(hidden))
    network.context = nn.Linear(2 * hidden, hidden, bias=False)
    network.state = nn.Linear(hidden, hidden, bias=False)
    network.output = nn.Linear(hidden, target_vocabulary)
    return network


def decode(
    network: Network,
    inputs: Tensor,
    memory: Tensor,
    mask: Tensor,
    last: Tensor | None = None,
    alive: Sequence[int] | None = None,
) -> Tensor:
    """Feeds of all steps of a `seq2seq_network`, one below the other: (sum of alive, H).

    Args:
        inputs: (T, B) ids that the decoder reads.
        memory: (B, S, 2H), outputs of the encoder;  mask: (B, S), 0, or -inf at padding.
        last:   (2 layers, B, H), last states of the encoder, which bridges read.
        alive:  number of leading rows that each step computes, never rising; B in all by default.
    """
    torch = import_torch()
    keys, values = network.key(memory), network.context(memory)  # (B, S, H)
    states = _first_states(network, memory, last)
    feed, feeds = memory.new_zeros(memory.shape[0], network.query.in_features), []
    # Words are not indexed in the loop: backward would fill a (T, B, E) with zeros in each step.
    for t, x in enumerate(network.target_embedding(inputs).unbind()):
        rows = len(x) if alive is None else alive[t]
        if rows < len(feed):  # cut only when rows finish: each cut costs a copy in backward
            states = [(h[:rows], c[:rows]) for h, c in states]
            feed, keys, values, mask = feed[:rows], keys[:rows], values[:rows], mask[:rows]
        x = torch.cat((x if rows == len(x) else x[:rows], feed), dim=1)
        for k, cell in enumerate(network.cells):
            states[k] = cell(x, states[k])
            x = states[k][0]
        feed = _attend(network, x, keys, values, mask)
        feeds.append(feed)
    return torch.cat(feeds)


def _first_states(
    network: Network, memory: Tensor, last: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """h and c of each decoder layer, (B, H): zeros, or what the bridges make of `last`."""
    if last is None or not len(network.bridges):
        zeros = memory.new_zeros(memory.shape[0], network.query.in_features)
        return [(zeros, zeros) for _ in network.cells]
    torch = import_torch()
    summary = torch.cat((last[-2], last[-1]), dim=1)
    mapped = [bridge(summary) for bridge in network.bridges]
    return [(torch.tanh(h), c) for h, c in zip(mapped[::2], mapped[1::2], strict=True)]


def _attend(network: Network, state: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """The feed of one step, from the decoder's state (B, H)."""
    torch = import_torch()
    # tanh_ in place: neither the sum nor tanh's backward needs the sum.
    scores = (keys + network.query(state).unsqueeze(1)).tanh_() @ network.score  # (B, S)
    weights = torch.softmax(scores + mask, dim=1)
    context = torch.bmm(weights.unsqueeze(1), values).squeeze(1)  # (B, H)
    return torch.tanh(context + network.state(state))


def mean_loss(logits: Tensor, targets: Tensor, sentences: int) -> Tensor:
    """Cross-entropy of logits (N, V), summed over the targets (N,) that count, a sentence."""
    functional = import_torch().nn.functional
    return (
        functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") / sentences
    )
