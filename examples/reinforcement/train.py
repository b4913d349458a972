"""Train a model by rewards alone: it writes, is told how good that was, and takes a step.

python -m examples.reinforcement.train
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

import dynbatch as db
from dynbatch import Node, models, optim
from dynbatch import nodes as F
from dynbatch.backend import Array
from dynbatch.commands.status import exit_status
from dynbatch.generation.requests import Generated
from dynbatch.tasks.options import above_zero, given, not_negative, option
from examples.reinforcement.brackets import END, TOKENS, prompt, reward


def several(text: str) -> int:
    """A whole number of at least 2, from the command line."""
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text} is below 2: an answer is compared with others")
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run, and of its output."""

    updates: int = option(300, "steps of the optimizer")
    prompts: int = option(16, "prompts of an update")
    samples: int = option(8, "answers to each prompt, at least 2", several)
    longest: int = option(6, "brackets of a prompt, at most")
    width: int = option(64, "units of the LSTM")
    lr: float = option(3e-3, "learning rate of Adam", above_zero)
    seed: int = option(0, "of all that is drawn", not_negative)
    threads: int | None = option(None, "threads (one a processor)")
    quiet: bool = option(False, "no progress bar")


class Writer(models.Module):
    """An LSTM that predicts each token from those before it."""

    def __init__(self, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = models.Embedding(len(TOKENS), width, rng=rng)
        self.lstm = models.LSTM(width, width, rng=rng)
        self.output = models.Linear(width, len(TOKENS), rng=rng)

    def logits(self, graph: db.Graph, ids: ArrayLike) -> Node:
        """Scores of the token after each of T ids, (T, len(TOKENS))."""
        return self.output(self.lstm(self.tokens(graph, ids)))


class Update(NamedTuple):
    """The numbers that an update was made of.

    rewards:    of each answer.
    difference: the largest between an answer's log-probability by the engine and by the graph.
    """

    rewards: list[float]
    difference: float


def sampled(engine: db.Engine, prompts: Sequence[Array], seed: int) -> list[list[Generated]]:
    """Answers to each prompt, drawn from the model as it is now."""
    numbers = [engine.add(ids, seed=seed + k) for k, ids in enumerate(prompts)]
    for _ in engine.run():
        pass
    return [engine.results(number) for number in numbers]


def update(
    model: Writer, optimizer: optim.Optimizer, prompts: Sequence[Array],
    answers: Sequence[Sequence[Generated]],
) -> Update:  # fmt: skip
    """Make answers more probable that are better than the others to their prompt, and take a step.

    The loss is -mean (R - b) log p(answer | prompt), with b the mean reward of the prompt's other
    answers: its gradient is that of -mean R, whatever b, as b does not depend on the answer.

    Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist
        reinforcement learning", Machine Learning 8; b: Kool et al. 2019, "Buy 4 REINFORCE samples,
        get a baseline for free!".
    """
    scored: list[tuple[Node, Generated]] = []
    rewards: list[float] = []
    advantages: list[float] = []
    with db.Graph() as graph:
        for ids, of_prompt in zip(prompts, answers, strict=True):
            given = np.array([reward(ids, one.tokens) for one in of_prompt])
            rewards += given.tolist()
            advantages += ((given - given.mean()) * len(given) / (len(given) - 1)).tolist()
            for one in of_prompt:
                scored.append((db.log_prob(graph, model, ids, one.tokens).keep(), one))
        log_probs = F.stack([node for node, _ in scored])
        graph.backward(F.dot(log_probs, F.input(graph, advantages)) / -len(scored))
        difference = max([abs(float(node.value) - one.score) for node, one in scored])
    optimizer.step()
    return Update(rewards, difference)


def learn(settings: Settings) -> list[Update]:
    """Train a model; each update samples with the one engine, and scores with a graph."""
    model = Writer(settings.width, settings.seed)
    optimizer = optim.Adam(model, lr=settings.lr)
    config = db.GenerationConfig(
        do_sample=True, num_return_sequences=settings.samples, eos_token_id=(END,),
        max_new_tokens=settings.longest + 1,
    )  # fmt: skip
    engine = db.Engine(model, config)
    rng = np.random.default_rng(settings.seed)
    updates: list[Update] = []
    with tqdm(range(settings.updates), disable=settings.quiet, ncols=80) as progress:
        for number in progress:
            prompts = [prompt(rng, settings.longest) for _ in range(settings.prompts)]
            answers = sampled(engine, prompts, seed=number * settings.prompts)
            updates.append(update(model, optimizer, prompts, answers))
            progress.set_postfix_str(f"reward {np.mean(updates[-1].rewards):.3f}", refresh=False)
    return updates


def picture(updates: Sequence[Update], columns: int = 60) -> str:
    """Mean rewards over a run as a row of bars, from 0 to 1.

    Example:
        >>> picture([Update([k / 4], 0.0) for k in range(5)])
        '▁▃▅▇█'
    """
    parts = np.array_split([np.mean(one.rewards) for one in updates], min(columns, len(updates)))
    return "".join(["▁▂▃▄▅▆▇█"[min(7, int(8 * part.mean()))] for part in parts])


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report. The exit status is that of `exit_status`."""
    what = "Train a model to close brackets, by rewards alone."
    settings = Settings(**given(Settings, argv, "python -m examples.reinforcement.train", what))

    def run() -> None:
        if settings.threads is not None:
            db.set_num_threads(settings.threads)
        updates = learn(settings)
        last = updates[-max(1, len(updates) // 10) :]
        means = [float(np.mean([one.rewards for one in part])) for part in (updates[:1], last)]
        count = sum([len(one.rewards) for one in updates])
        difference = max([one.difference for one in updates])
        print(f"reward {picture(updates)}  {means[0]:.3f} at first, {means[1]:.3f} at last")
        print(f"sampled and scored log-probabilities of {count:,} answers differ by {difference:g}")

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
