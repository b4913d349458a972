"""The parser's network: a bi-LSTM over the words, a stack LSTM over what is on the stack.

Source: Dyer, Ballesteros, Ling, Matthews & Smith 2015, Transition-based dependency parsing with
stack long short-term memory, arXiv:1505.08075. Words are read by a bi-LSTM here, whose backward
direction is also the LSTM over the buffer; there is no LSTM over past actions.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

import dynbatch as db
from dynbatch import models
from dynbatch import nodes as F
from dynbatch.models.initial import Rng, generator, uniform
from examples.parser.data import Numbered
from examples.parser.transitions import Action, Configuration


@db.cell
def push(x: Any, state: Any, p: Any) -> Any:
    """The stack with x (I,) on top: one step of an LSTM, which starts from the state below."""
    h, c = state
    i, f, g, o = F.chunk(F.linear(x, p.weight_x, p.bias) + F.linear(h, p.weight_h), 4)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, (h, c)


@db.cell
def compose(head: Any, dependent: Any, relation: Any, p: Any) -> Any:
    """A subtree with one dependent more: tanh(U h + V d + r + b), all (I,)."""
    linear = F.linear(head, p.weight_head, p.bias) + F.linear(dependent, p.weight_dependent)
    return F.tanh(linear + relation)


class StackLSTM(models.Module):
    """Weights of `push`: x (I,) to a summary of the stack (H,)."""

    def __init__(self, features: int, hidden: int, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.weight_x = uniform(rng, (4 * hidden, features), hidden)
        self.weight_h = uniform(rng, (4 * hidden, hidden), hidden)
        self.bias = uniform(rng, (4 * hidden,), hidden)


class Composition(models.Module):
    """Weights of `compose`."""

    def __init__(self, features: int, *, rng: Rng = None) -> None:
        rng = generator(rng)
        self.weight_head = uniform(rng, (features, features), 2 * features)
        self.weight_dependent = uniform(rng, (features, features), 2 * features)
        self.bias = uniform(rng, (features,), 2 * features)


class Entry(NamedTuple):
    """A subtree on the stack: its vector (I,), and the stack LSTM's output (H,) and state there.

    Popping is going back to the entry below, which still has its own.
    """

    vector: db.Node
    summary: db.Node
    state: Any


class Sizes(NamedTuple):
    """Features of the embeddings, and units of each LSTM and of the layer that decides."""

    word: int = 100
    suffix: int = 50
    tag: int = 30
    lstm: int = 100
    stack: int = 100
    hidden: int = 100


class Parser(models.Module):
    """A dependency parser of one sentence: the loss of a known tree, or the tree it finds.

    Args:
        vocabularies: numbers of words, suffixes and tags; 0 tags for a parser that reads none.
        actions:      what it may do.
        sizes:        of the layers.
        dropout:      of embeddings and of both LSTMs' inputs, while training.
    """

    def __init__(
        self,
        vocabularies: tuple[int, int, int],
        actions: Sequence[Action],
        sizes: Sizes,
        dropout: float = 0.0,
    ) -> None:
        kinds = (sizes.word, sizes.suffix, sizes.tag)
        used = [(n, width) for n, width in zip(vocabularies, kinds, strict=True) if n]
        width = 2 * sizes.lstm
        self.actions = list(actions)
        self.ids = {action: index for index, action in enumerate(self.actions)}
        self.sizes = sizes
        self.dropout = dropout
        self.embeddings = [models.Embedding(n, width) for n, width in used]
        self.lstm = models.LSTM(
            sum([width for _, width in used]), sizes.lstm, 2, bidirectional=True, dropout=dropout
        )
        self.relations = models.Embedding(len(self.actions), width)
        self.composition = Composition(width)
        self.stack_lstm = StackLSTM(width, sizes.stack)
        self.layer = models.Linear(sizes.stack + 3 * width, sizes.hidden)
        self.score = models.Linear(sizes.hidden, len(self.actions))

    def loss(self, graph: db.Graph, sentence: Numbered) -> db.Node:
        """Cross-entropy of the oracle's actions, summed. All states are known without a value."""
        state = State(self, graph, sentence)
        stacks, fronts = [], []
        for action in sentence.actions:
            stacks.append(state.stack_features())
            fronts.append(state.front)
            state.apply(action)
        features = [F.stack(part) for part in zip(*stacks, strict=True)]  # (2T - 1, ...) each
        scores = self._scores(F.concat([*features, state.words[fronts]]))
        answers = [self.ids[action] for action in sentence.actions]
        return F.cross_entropy(scores, answers, reduction="sum")

    def parse(
        self, graph: db.Graph, sentence: Numbered
    ) -> Generator[db.Node, Any, tuple[list[int], list[str]]]:
        """Heads and labels of one sentence: at each step the legal action that scores best."""
        state = State(self, graph, sentence)
        while legal := state.configuration.legal():
            scores = yield self._scores(
                F.concat([*state.stack_features(), state.words[state.front]])
            )  # the decision
            allowed = [k for k, action in enumerate(self.actions) if action.kind in legal]
            state.apply(self.actions[allowed[int(np.argmax(scores[allowed]))]])
        return state.configuration.heads, state.configuration.labels

    def _scores(self, features: db.Node) -> db.Node:
        """A score for each action, of one step or of many."""
        hidden = F.relu(self.layer(features))
        return self.score(F.dropout(hidden, self.dropout, self.training))

    def encode(self, graph: db.Graph, sentence: Numbered) -> db.Node:
        """Vectors of the words, and after them one of the empty buffer, zeros: (T + 1, I)."""
        parts = [
            embed(graph, ids) for embed, ids in zip(self.embeddings, sentence.ids, strict=True)
        ]
        xs = F.dropout(F.concat(parts), self.dropout, self.training)
        words = F.dropout(self.lstm(xs), self.dropout, self.training)
        return F.concat([words, F.constant(graph, 0.0, (1, 2 * self.sizes.lstm))], dim=0)


class State:
    """A sentence on its way: its configuration, and what the network knows of it."""

    def __init__(self, parser: Parser, graph: db.Graph, sentence: Numbered) -> None:
        self.configuration = Configuration(len(sentence.ids[0]))
        self.words = parser.encode(graph, sentence)
        nothing = F.constant(graph, 0.0, (self.words.width,))
        zeros = F.constant(graph, 0.0, (parser.sizes.stack,))
        below = Entry(nothing, zeros, (zeros, zeros))
        self._stack = [below, below]  # so that there always is a second entry
        self._parser = parser
        self._graph = graph

    @property
    def front(self) -> int:
        """Row of `words` that is the buffer's first."""
        return self.configuration.front - 1

    def stack_features(self) -> tuple[db.Node, db.Node, db.Node]:
        """The summary of the stack, and the vectors of its second entry and of its first."""
        second, first = self._stack[-2:]
        return first.summary, second.vector, first.vector

    def apply(self, action: Action) -> None:
        """Do what is legal, and push what comes of it."""
        if action.kind == "shift":
            vector = self.words[self.front]
        else:
            parser = self._parser
            second, first = [entry.vector for entry in self._stack[-2:]]
            del self._stack[-2:]
            head, dependent = (first, second) if action.kind == "left" else (second, first)
            relation = parser.relations(self._graph, [parser.ids[action]])[0]
            vector = compose(head, dependent, relation, parser.composition)
        summary, state = push(vector, self._stack[-1].state, self._parser.stack_lstm)
        self._stack.append(Entry(vector, summary, state))
        self.configuration.apply(action)
