"""`Machine`: a finite-state machine over the frontier that says what runs next; `fit` makes one.

Source: Chen et al. 2023 (ED-Batch), arXiv:2302.03851: states are the ready signatures ordered by
how many nodes each has, fitted by tabular Q-learning. Our reward is the change of the lower bound,
where theirs is the share that is ready of a signature's own frontier; so the regrets of a plan's
batches add up to what it has above the bound. A state without an entry is not a reason to guess:
there the bound itself decides.

The table is speculative: it is measured to help on lattices and on trees of two cells, and on
nothing else (docs/design/batching.md).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from dynbatch.batcher.schedule.frontier import BoundedFrontier
from dynbatch.batcher.schedule.plan import BatchStep, Structure

# The ready signatures, those of most nodes first.
State = tuple[int, ...]

# The budget of a fit: episodes, of which every second explores, and nodes run in all of them.
EPISODES = 100
NODES = 200_000
# Of more signatures than this a table would hardly see a state twice: none is fitted.
SIGNATURES = 64
# Chosen on lattices, the only topology measured that the bound alone leaves room on.
EXPLORED, RATE, DISCOUNT = 0.3, 0.2, 0.5


class Choice(NamedTuple):
    """A choice in a state, and its regret: 0 if the batch lowered the bound, else 1."""

    state: State
    signature: int
    regret: int


class Machine:
    """Runs the ready signature of least regret, from a table by state.

    What the table does not know has regret 0 if its batch lowers the bound, and 1 if not. Ties
    break on the lowest average depth, then on the first ready node. Without a table: `by_bound`.
    """

    def __init__(self) -> None:
        self._regrets: dict[State, dict[int, float]] = {}

    def __call__(self, structure: Structure) -> Iterable[BatchStep]:
        frontier = BoundedFrontier(structure)
        while frontier.ready:
            signature = self.choose(frontier)
            yield BatchStep(signature, tuple(frontier.take(signature)))

    def choose(self, frontier: BoundedFrontier) -> int:
        known = self._regrets.get(state_of(frontier)) if self._regrets else None
        if known is None:
            return frontier.lowest()
        regrets = {s: known.get(s, float(not frontier.lowers(s))) for s in frontier.ready}
        return min(regrets, key=lambda s: (regrets[s], frontier.priority[s]))

    def learn(self, choices: Iterable[Choice]) -> None:
        """One episode of Q-learning, last choice first: regret + discount · least regret after."""
        after = 0.0
        for state, signature, regret in choices:
            known = self._regrets.setdefault(state, {})
            value = known.get(signature, float(regret))
            known[signature] = value + RATE * (regret + DISCOUNT * after - value)
            after = min(known.values())

    def copy(self) -> Machine:
        copied = Machine()
        copied._regrets = {state: known.copy() for state, known in self._regrets.items()}
        return copied


def state_of(frontier: BoundedFrontier) -> State:
    """The ready signatures, those of most nodes first; ties break on the signature."""
    ready = frontier.ready
    return tuple(sorted(ready, key=lambda signature: (-len(ready[signature]), signature)))


def fit(structure: Structure) -> tuple[Machine, int]:
    """The best machine found within the budget, and its number of batches. Deterministic.

    The first episode is that of `by_bound`, so the machine is never worse on this structure. A fit
    ends at once where that reaches the lower bound, which no machine can improve on.
    """
    machine = Machine()
    if len(set(structure.signatures)) > SIGNATURES:
        return machine, sum([1 for _ in machine(structure)])
    frontier = BoundedFrontier(structure)
    bound = frontier.bound
    best, fewest = machine, len(structure) + 1
    generator = random.Random(0)
    for episode in range(max(1, min(EPISODES, NODES // max(1, len(structure))))):
        explored = EXPLORED if episode % 2 else 0.0
        choices = _episode(frontier, machine, explored, generator)
        if not explored and len(choices) < fewest:
            best, fewest = machine.copy(), len(choices)
            if fewest == bound:
                break
        machine.learn(reversed(choices))
    return best, fewest


def _episode(
    frontier: BoundedFrontier, machine: Machine, explored: float, generator: random.Random
) -> list[Choice]:
    """Run the whole structure, with a share of the choices at random."""
    choices: list[Choice] = []
    frontier.restart()
    while frontier.ready:
        state = state_of(frontier)
        if explored and generator.random() < explored:
            signature = state[int(generator.random() * len(state))]
        else:
            signature = machine.choose(frontier)
        choices.append(Choice(state, signature, int(not frontier.lowers(signature))))
        frontier.take(signature)
    return choices
