"""A shift-reduce parser that learns which operator binds tighter, by trying.

    1-2*3^4^5+6  ->  ((1-(2*(3^(4^5))))+6)

Where an operator may wait or be applied, the parser does what the model prefers, right or wrong,
and learns what was right in the state it got into. So each value decides how the graph goes on.
It is written for one expression, as a generator; `db.drive` batches.

    python -m examples.shift_reduce

Source: learning in the states that one's own choices lead to is DAgger: Ross, Gordon & Bagnell
2011, arXiv:1011.0686.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

import dynbatch as db
from dynbatch import models, optim
from dynbatch import nodes as F

DIGITS, PRECEDENCE = "0123456789", {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
SYMBOLS = DIGITS + "".join(PRECEDENCE)


def binds_tighter(left: str, right: str) -> bool:
    """Whether the operator on the left is applied first; among powers it is not."""
    return PRECEDENCE[left] >= PRECEDENCE[right] and not left == right == "^"


class Parser(models.Module):
    """Vectors of symbols, of subtrees, and scores of shifting and reducing."""

    def __init__(self, features: int = 16) -> None:
        self.embed = models.Embedding(len(SYMBOLS), features)
        self.compose = models.Linear(3 * features, features)
        self.score = models.Linear(3 * features, 2)

    def parse(
        self, graph: db.Graph, expression: str
    ) -> Generator[db.Node, Any, tuple[list[db.Node], str, bool]]:
        """One expression: each choice's loss, the tree as text, whether all was right."""
        rows = self.embed(graph, [SYMBOLS.index(symbol) for symbol in expression])
        buffer = [(rows[k], symbol) for k, symbol in enumerate(expression)][::-1]
        stack, losses, is_right = [buffer.pop()], [], True
        while buffer or len(stack) > 1:
            reduces = not buffer
            if buffer and len(stack) > 1:
                (operator, left), (top, _), (following, right) = *stack[-2:], buffer[-1]
                scores = self.score(F.concat([operator, top, following]))
                answer = binds_tighter(left, right)
                losses.append(F.cross_entropy(F.unsqueeze(scores, 0), [int(answer)]))
                reduces = bool(np.argmax((yield scores)))  # the decision
                is_right = is_right and reduces == answer
            if reduces:
                vectors, texts = zip(*stack[-3:], strict=True)
                stack[-3:] = [(F.tanh(self.compose(F.concat(vectors))), f"({''.join(texts)})")]
            else:
                stack += [buffer.pop(), buffer.pop()]  # an operator and a digit
        return losses, stack[0][1], is_right


def random_expression(rng: np.random.Generator) -> str:
    """3 to 12 digits with operators between."""
    operators = rng.choice(list(PRECEDENCE), rng.integers(2, 12)).tolist()
    digits = rng.choice(list(DIGITS), len(operators) + 1).tolist()
    return "".join([d + o for d, o in zip(digits, [*operators, ""], strict=True)])


def train(steps: int = 61, batch: int = 32, seed: int = 0) -> Parser:
    """A parser after `steps` mini-batches of expressions that nobody has seen before."""
    db.seed(seed)
    rng = np.random.default_rng(seed)
    parser = Parser()
    optimizer = optim.Adam(parser.parameters(), lr=0.01)
    for step in range(steps):
        with db.Graph() as graph:
            parses = [parser.parse(graph, random_expression(rng)) for _ in range(batch)]
            losses, _, right = zip(*db.drive(graph, parses), strict=True)
            loss, runs = F.mean([one for each in losses for one in each]), len(graph.plans)
            graph.backward(loss)
        optimizer.step()
        if step % 20 == 0:
            found = f"loss {float(loss.value):.3f}  right {np.mean(right):4.0%}"
            print(f"step {step:3}  {found}  {runs} runs for {batch} expressions")
    return parser


def parse_all(parser: Parser, expressions: list[str]) -> list[str]:
    """The trees, as text."""
    with db.Graph(grad=False) as graph:
        parses = [parser.parse(graph, expression) for expression in expressions]
        return [tree for _, tree, _ in db.drive(graph, parses)]


if __name__ == "__main__":
    for tree in parse_all(train(), ["1-2*3^4^5+6", "9/8/7-6"]):
        print(tree)
