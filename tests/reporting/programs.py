"""Programs of users: twenty with a mistake each, and ten that do what they should.

Each returns the last graph that it ran, closed, or the text that it was told on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F
from dynbatch.train import Trainer

WORDS, TAGS, WIDTH = 50, 6, 16
SENTENCES, STEPS = 24, 10

Told = db.Graph | str


class Tagger(models.Module):
    """An embedding, an LSTM, and scores of tags."""

    def __init__(self) -> None:
        self.embed = models.Embedding(WORDS, WIDTH, rng=0)
        self.lstm = models.LSTM(WIDTH, WIDTH, rng=0)
        self.out = models.Linear(WIDTH, TAGS, rng=0)

    def loss(self, graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        return F.cross_entropy(self.out(self.lstm(self.embed(graph, ids))), tags)


def data(count: int = SENTENCES, seed: int = 0, shortest: int = 3, longest: int = 12) -> list[Any]:
    """Sentences of different lengths, as ids of words and of tags."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, count)
    return [(rng.integers(1, WORDS, n), rng.integers(0, TAGS, n)) for n in lengths]


def train(
    loss: Callable[[db.Graph, Any], Any],
    model: models.Module,
    steps: int = STEPS,
    examples: list[Any] | None = None,
    after: Callable[[Any], object] = lambda total: None,
    memory_limit: int | None = None,
    **settings: Any,
) -> db.Graph:
    """Training steps as a user writes them; the graph of the last."""
    optimizer = optim.SGD(model, lr=0.01)
    for step in range(steps):
        with db.Graph(**settings) as graph:
            mini_batch = data(seed=step) if examples is None else examples
            total = F.mean([F.sum(loss(graph, example)) for example in mini_batch])
            graph.backward(total, memory_limit)
        optimizer.step()
        after(total)
    return graph


# Mistakes ----------------------------------------------------------------------------------------


def value_read_in_the_loop() -> Told:
    model = Tagger()
    with db.Graph() as graph:
        losses, total = [], 0.0
        for example in data(200):
            losses.append(F.sum(model.loss(graph, example)))
            total += float(losses[-1].value)
        graph.backward(F.mean(losses))
    return graph


def value_read_in_the_loop_of_trees() -> Told:
    tree = models.BinaryTreeLSTM(WIDTH, WIDTH, rng=0)
    out = models.Linear(WIDTH, 2, rng=0)
    with db.Graph() as graph:
        losses = []
        for k in range(60):
            length = 2 + k % 5
            xs = F.input(graph, np.ones((length, WIDTH), np.float32))
            pairs = [(0, 1)] + [(length + n, n + 2) for n in range(length - 2)]
            losses.append(F.cross_entropy(out(tree(xs, pairs)[1]), k % 2))
            losses[-1].value  # noqa: B018
        graph.backward(F.mean(losses))
    return graph


def graph_for_each_sentence() -> Told:
    model = Tagger()
    optimizer = optim.SGD(model, lr=0.01)
    for example in data(SENTENCES):
        with db.Graph() as graph:
            graph.backward(F.sum(model.loss(graph, example)))
        optimizer.step()
    return graph


def cell_made_in_each_step() -> Told:
    model = Tagger()

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        states, _ = db.scan(graph_cells[graph], model.embed(graph, ids), WIDTH, model.out.weight)
        return F.cross_entropy(model.out(states), tags)

    graph_cells: dict[db.Graph, Any] = {}
    optimizer = optim.SGD(model, lr=0.01)
    for _ in range(STEPS):

        @db.cell
        def step(x: Any, h: Any, weight: Any) -> Any:
            h = F.tanh(x + h)
            return h, h

        with db.Graph() as graph:
            graph_cells[graph] = step
            graph.backward(F.mean([F.sum(loss(graph, example)) for example in data()]))
        optimizer.step()
    return graph


def block_made_in_each_step() -> Told:
    model = Tagger()

    def loss(graph: db.Graph, example: Any) -> Any:
        return F.sum(graph_loss(graph, *example))

    optimizer = optim.SGD(model, lr=0.01)
    for _ in range(STEPS):
        graph_loss = db.block(lambda graph, ids, tags: model.loss(graph, (ids, tags)))
        with db.Graph() as graph:
            graph.backward(F.mean([loss(graph, example) for example in data()]))
        optimizer.step()
    return graph


def parameter_made_in_each_step() -> Told:
    model = Tagger()
    optimizer = optim.SGD(model, lr=0.01)
    for _ in range(STEPS):
        scale = db.Parameter(np.ones((TAGS, WIDTH), np.float32), "scale")
        with db.Graph() as graph:
            losses = []
            for ids, tags in data():
                states = model.lstm(model.embed(graph, ids))
                losses.append(F.sum(F.cross_entropy(F.linear(states, scale), tags)))
            graph.backward(F.mean(losses))
        optimizer.step()
    return graph


def widths_that_differ_by_sentence() -> Told:
    scale = db.Parameter(np.ones(1, np.float32), "scale")
    with db.Graph() as graph:
        losses = []
        for number, (ids, _) in enumerate(data(longest=30)):
            x = F.input(graph, np.full((WIDTH, ids.size), 0.1 * number, np.float32))
            y = F.softmax(F.tanh(x))  # features by tokens, not tokens by features
            losses.append(F.sum(y) * F.sum(F.parameter(graph, scale)))
        graph.backward(F.mean(losses))
    return graph


def padded_input() -> Told:
    model = Tagger()

    def padded(examples: list[Any]) -> list[Any]:
        longest = max([ids.size for ids, _ in examples])
        return [[np.pad(array, (0, longest - array.size)) for array in pair] for pair in examples]

    return train(model.loss, model, examples=padded(data()))


def padded_vectors() -> Told:
    out = models.Linear(WIDTH, TAGS, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        rows = np.zeros((12, WIDTH), np.float32)
        rows[: example[0].size] = 0.5
        return F.max(out(F.input(graph, rows)), dim=0)

    return train(loss, out)


def loop_over_tokens() -> Told:
    model = Tagger()
    step = models.Linear(WIDTH, WIDTH, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        xs = model.embed(graph, ids)
        h = F.input(graph, np.zeros(WIDTH, np.float32))
        losses = []
        for t in range(ids.size):
            h = F.tanh(xs[t] + step(h))
            losses.append(F.cross_entropy(model.out(h), int(tags[t])))
        return F.sum(losses)

    return train(loss, model, steps=3)


def attention_by_hand() -> Told:
    model = Tagger()
    query, key = models.Linear(WIDTH, WIDTH, rng=0), models.Linear(WIDTH, WIDTH, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        x = model.embed(graph, ids)
        weights = F.softmax(query(x) @ key(x).T * WIDTH**-0.5)
        return F.cross_entropy(model.out(weights @ x), tags)

    return train(loss, model, steps=3)


def float64_arrays() -> Told:
    out = models.Linear(256, TAGS, rng=0)
    arrays = [np.random.default_rng(k).normal(size=(40, 256)) for k in range(SENTENCES)]

    def loss(graph: db.Graph, example: Any) -> Any:
        return F.cross_entropy(out(F.input(graph, example)), np.zeros(40, int))

    return train(loss, out, examples=arrays)


def wide_layers() -> Told:
    layer = models.Linear(256, 256, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        return F.tanh(layer(F.input(graph, np.ones((example[0].size, 256), np.float32))))

    return train(loss, layer)


def sound_tagger() -> Told:
    model = Tagger()
    return train(model.loss, model)


def evaluation_that_may_differentiate() -> Told:
    model = Tagger()
    model.eval()
    for step in range(STEPS):
        with db.Graph() as graph:
            losses = [F.sum(model.loss(graph, example)) for example in data(seed=step)]
            graph.values(losses)
    return graph


def keep_of_everything() -> Told:
    model = Tagger()

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        x = model.embed(graph, ids).keep()
        h = F.tanh(model.lstm(x).keep()).keep()
        return F.cross_entropy(model.out(h).keep(), tags).keep()

    return train(loss, model, steps=3)


def limit_that_computes_all_again() -> Told:
    layers = models.Sequential(*[models.Linear(WIDTH, WIDTH, rng=k) for k in range(16)])

    def loss(graph: db.Graph, example: Any) -> Any:
        h = F.input(graph, np.ones((example[0].size, WIDTH), np.float32))
        for layer in layers:
            h = F.tanh(layer(h))
        return F.sum(h)

    with db.Graph() as graph:
        need = graph.estimate(F.mean([loss(graph, one) for one in data()])).peak_bytes
    return train(loss, layers, steps=3, examples=data(), memory_limit=int(need * 0.7))


def mini_batches_of_two() -> Told:
    model = Tagger()
    examples = data(2)
    return train(model.loss, model, examples=examples)


def mini_batches_of_two_with_a_trainer(capture: Callable[[], str]) -> Told:
    class Batches(SlowBatches):
        def epoch(self, number: int) -> Iterator[list[Any]]:
            return iter([data(2, seed=step) for step in range(len(self))])

    return trained(Batches(), capture)


def loss_read_in_each_step_on_a_device() -> Told:
    model = Tagger().to("cuda")
    return train(
        model.loss, model, examples=data(), after=lambda total: float(total.value), device="cuda"
    )


def policy_one_by_one() -> Told:
    model = Tagger()
    return train(model.loss, model, steps=3, policy="one_by_one")


def check_left_on() -> Told:
    model = Tagger()
    return train(model.loss, model, steps=3, check=True)


class SlowBatches:
    """Mini-batches whose sentences are read slowly."""

    def __len__(self) -> int:
        return 10

    def epoch(self, number: int) -> Iterator[list[Any]]:
        for step in range(len(self)):
            time.sleep(0.1)
            yield data(seed=step)


def trained(batches: Any, capture: Callable[[], str]) -> Told:
    """The Trainer's messages in an epoch."""
    model = Tagger()
    trainer = Trainer(
        model, optim.SGD(model, lr=0.01), lambda graph, model, one: F.sum(model.loss(graph, one)),
        batches, advise_after=len(batches), show_progress=False,
    )  # fmt: skip
    trainer.fit(1)
    return capture()


def slow_reader(capture: Callable[[], str]) -> Told:
    return trained(SlowBatches(), capture)


def copies_where_one_layer_was_meant() -> Told:
    model = Tagger()

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        out = models.Linear(WIDTH, TAGS, rng=0)  # in the loop: each sentence has its own
        return F.cross_entropy(out(model.lstm(model.embed(graph, ids))), tags)

    return train(loss, model, steps=1)


# Sound programs ----------------------------------------------------------------------------------


def sequence_to_sequence() -> Told:
    model = models.Seq2Seq(WORDS, WORDS, WIDTH, WIDTH, rng=0)
    return train(lambda graph, one: model.loss(graph, one[0], one[0][::-1]), model, steps=3)


def trees() -> Told:
    tree = models.BinaryTreeLSTM(WIDTH, WIDTH, rng=0)
    out, embed = models.Linear(WIDTH, 2, rng=0), models.Embedding(WORDS, WIDTH, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        length = example[0].size
        pairs = [(0, 1)] + [(length + n, n + 2) for n in range(length - 2)]
        return F.cross_entropy(out(tree(embed(graph, example[0]), pairs)[1]), length % 2)

    return train(loss, tree, steps=3)


def transformer() -> Told:
    model = Tagger()
    encoder = models.TransformerEncoder(2, WIDTH, 4, rng=0)

    def loss(graph: db.Graph, example: Any) -> Any:
        ids, tags = example
        return F.cross_entropy(model.out(encoder(model.embed(graph, ids))), tags)

    return train(loss, model, steps=3)


@db.cell
def shift(h: Any, x: Any, p: Any) -> Any:
    return F.tanh(F.linear(h, p[0]) + F.linear(x, p[1]))


def parser_with_a_driver() -> Told:
    embed, out = models.Embedding(WORDS, WIDTH, rng=0), models.Linear(WIDTH, 3, rng=0)
    weights = [models.Linear(WIDTH, WIDTH, rng=k).weight for k in range(2)]

    def parse(graph: db.Graph, ids: Any) -> Iterator[Any]:
        xs, losses = embed(graph, ids), []
        h = F.input(graph, np.zeros(WIDTH, np.float32))
        for t in range(ids.size):
            h = shift(h, xs[t], weights)
            scores = out(h)
            action = int(np.argmax((yield scores)))
            losses.append(F.cross_entropy(scores, action))
            if action == 2:
                h = shift(h, h, weights)
        return F.sum(losses)

    for step in range(STEPS):
        with db.Graph() as graph:
            losses = db.drive(graph, [parse(graph, ids) for ids, _ in data(40, seed=step)])
            graph.backward(F.mean(losses))
    return graph


def convolutions() -> Told:
    cnn, embed = models.TextCNN(WIDTH, 3, filters=8, rng=0), models.Embedding(WORDS, WIDTH, rng=0)
    return train(
        lambda graph, one: F.cross_entropy(cnn(embed(graph, one[0])), int(one[1][0]) % 3), cnn
    )


def inference() -> Told:
    model = Tagger()
    model.eval()
    for step in range(STEPS):
        with db.Graph(grad=False) as graph:
            scores = [model.loss(graph, example) for example in data(seed=step)]
            [score.value for score in scores]
    return graph


def few_short_sentences() -> Told:
    model = Tagger()
    return train(model.loss, model, examples=data(12, shortest=1, longest=4))


def keep_of_two_nodes() -> Told:
    model = Tagger()
    for step in range(STEPS):
        with db.Graph() as graph:
            losses = [F.sum(model.loss(graph, example)) for example in data(seed=step)]
            losses[0].keep(), losses[3].keep()
            graph.backward(F.mean(losses))
    return graph


def outputs_kept_to_be_read_later() -> Told:
    model = Tagger()
    with db.Graph(grad=False) as graph:
        for words, _ in data(32):
            model.lstm(model.embed(graph, words)).keep()
        graph.forward()
    return graph


def limit_that_fits() -> Told:
    model = Tagger()
    return train(model.loss, model, memory_limit=1 << 30)


def losses_joined_by_plus() -> Told:
    model = Tagger()
    for step in range(STEPS):
        with db.Graph() as graph:
            graph.backward(sum([F.sum(model.loss(graph, one)) for one in data(seed=step)]))
    return graph


def with_a_trainer(capture: Callable[[], str]) -> Told:
    class Batches(SlowBatches):
        def epoch(self, number: int) -> Iterator[list[Any]]:
            return iter([data(40, seed=step) for step in range(len(self))])

    return trained(Batches(), capture)


@dataclass(frozen=True)
class Mistake:
    """A program, and words of the cause and of the fix that it must be told."""

    program: Callable[..., Told]
    cause: str
    fix: str


MISTAKES = {
    "a value read in the loop": [
        Mistake(value_read_in_the_loop, "values were read while the graph was built", "then read"),
        Mistake(value_read_in_the_loop_of_trees, "values were read while", "then read"),
    ],
    "a graph for each sentence": [
        Mistake(graph_for_each_sentence, "a graph for each sentence", "all sentences of a mini-"),
    ],
    "a cell or block made anew in each step": [
        Mistake(cell_made_in_each_step, "cell or block step (programs.py", "make it once"),
        Mistake(block_made_in_each_step, "cell or block lambda (programs.py", "make it once"),
    ],
    "a parameter made anew": [
        Mistake(
            parameter_made_in_each_step, "anew in each of the last 4 graphs: 'scale'", "in __init__"
        ),
    ],
    "widths that differ by sentence": [
        Mistake(widths_that_differ_by_sentence, "widths", "a length may differ, a width may not"),
    ],
    "padded input by habit": [
        Mistake(padded_input, "padding", "as they are"),
        Mistake(padded_vectors, "padding", "as they are"),
    ],
    "a loop over tokens without scan": [
        Mistake(loop_over_tokens, "a loop over tokens", "db.scan"),
    ],
    "attention by hand outside of a block": [
        Mistake(attention_by_hand, "attention by hand", "F.attention"),
    ],
    "float64 arrays converted in each step": [
        Mistake(float64_arrays, "float64", "astype"),
    ],
    "no compiler": [
        Mistake(sound_tagger, "there is no C compiler", "pip install 'dynbatch[compiler]'"),
    ],
    "one thread idle": [
        Mistake(wide_layers, "processors", "db.set_num_threads"),
    ],
    "grad=True in evaluation": [
        Mistake(evaluation_that_may_differentiate, "no backward", "grad=False"),
    ],
    "keep() on everything": [
        Mistake(keep_of_everything, "keep()", "keep() only"),
    ],
    "a limit that recomputes all": [
        Mistake(limit_that_computes_all_again, "memory_limit", "a higher memory_limit"),
    ],
    "a mini-batch of two": [
        Mistake(mini_batches_of_two, "mini-batches of 2 sentences", "a larger mini-batch"),
        Mistake(mini_batches_of_two_with_a_trainer, "mini-batches of 2 sen", "a larger mini-batch"),
    ],
    "the loss read in each step on a device": [
        Mistake(loss_read_in_each_step_on_a_device, "the loss", "later"),
    ],
    "a policy one_by_one left on": [
        Mistake(policy_one_by_one, "one_by_one", "Graph() without policy"),
    ],
    "check=True left on": [
        Mistake(check_left_on, "check", "Graph() without check"),
    ],
    "a slow reader of data": [
        Mistake(slow_reader, "reading", "beforehand"),
    ],
    "different parameters where one was meant": [
        Mistake(copies_where_one_layer_was_meant, "24 parameters", "one layer for all sentences"),
    ],
}  # fmt: skip

SOUND = [
    sound_tagger, sequence_to_sequence, trees, transformer, parser_with_a_driver, convolutions,
    wide_layers, inference, few_short_sentences, keep_of_two_nodes,
    outputs_kept_to_be_read_later, limit_that_fits,
    losses_joined_by_plus, with_a_trainer,
]  # fmt: skip
