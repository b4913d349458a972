"""A process that trains for ever, and says on its standard output which signals it was told of.

    python -m tests.train.signalled fit FOLDER

A letter a signal: I for KeyboardInterrupt, T for Terminated. Other letters are faults: B for bits
that differ after an interrupt, D for an exception that the interpreter dropped.
"""

import os
import sys
from pathlib import Path

import numpy as np

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.interrupts import Terminated, terminable

LENGTHS = (3, 1, 5, 2, 4, 2)


class Model(models.Module):
    def __init__(self):
        self.inner, self.outer = models.Linear(4, 8), models.Linear(8, 1)

    def loss(self, graph, rows):
        return F.sum(F.tanh(self.outer(F.tanh(self.inner(F.input(graph, rows))))))


def sentences():
    draws = np.random.default_rng(0)
    return [draws.standard_normal((length, 4)).astype(np.float32) for length in LENGTHS]


def loop(_):
    """A loop without a `Trainer`; its steps are alike."""
    model, rows = Model(), sentences()

    def step():
        with db.Graph(seed=1) as graph:
            loss = F.sum([model.loss(graph, each) for each in rows])
            graph.backward(loss)
        found = [parameter.grad.tobytes() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.zero_grad()
        return found

    expected = step()

    def run():
        for parameter in model.parameters():
            parameter.zero_grad()
        while True:
            if step() != expected:
                os.write(1, b"B")

    return run


def fit(folder):
    """A `Trainer`, which saves at each signal and every third update."""
    model = Model()
    trainer = train.Trainer(
        model, optim.Adam(model, lr=1e-3), lambda graph, model, rows: model.loss(graph, rows),
        train.SentenceBatches(sentences(), batch_size=2),
        checkpoint_path=folder / "run.safetensors", checkpoint_every=3,
        metrics_path=folder / "metrics.jsonl", show_progress=False,
    )  # fmt: skip
    return lambda: trainer.fit(1_000_000, overwrite=True)


def main(kind, folder):
    db.seed(0)
    run = {"loop": loop, "fit": fit}[kind](Path(folder))
    sys.unraisablehook = lambda dropped: os.write(1, b"D")
    sys.stderr = open(os.devnull, "w")  # of what a Trainer tells
    told = "R"  # ready
    with terminable():
        while True:
            try:
                if told:
                    letter, told = told, ""
                    os.write(1, letter.encode())  # from here on the next signal may come
                run()
            except KeyboardInterrupt:
                told = "I"
            except Terminated:
                told = "T"


if __name__ == "__main__":
    main(*sys.argv[1:])
