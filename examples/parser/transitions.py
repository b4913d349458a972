"""Arc-standard transitions: what the parser may do, and what it must do to give a known tree.

Words are numbered from 1; a word's head is a word, or 0 for the root.

    shift       the next word of the buffer goes onto the stack
    left-arc    the stack's second word hangs from the first (to its left), and is gone
    right-arc   the stack's first word hangs from the second (to its right), and is gone

A sentence of T words takes T shifts and T - 1 arcs; the word that is left is the root.

Source: Nivre 2004, Incrementality in deterministic dependency parsing; Nivre & Nilsson 2005,
Pseudo-projective dependency parsing, for `projective`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["shift", "left", "right"]


class Action(NamedTuple):
    """A transition; of an arc with the dependent's label."""

    kind: Kind
    label: str = ""


SHIFT = Action("shift")


class Configuration:
    """A sentence that is parsed so far.

    Attributes:
        stack: numbers of words, the last one its top.
        front: number of the first word of the buffer; one past the last word if it is empty.
        heads, labels: of each word so far; 0 and "root" of those that have none.
    """

    def __init__(self, num_words: int) -> None:
        self.stack: list[int] = []
        self.front = 1
        self.heads = [0] * num_words
        self.labels = ["root"] * num_words

    def legal(self) -> tuple[Kind, ...]:
        """The legal actions; none when the sentence is parsed."""
        shift: tuple[Kind, ...] = ("shift",) if self.front <= len(self.heads) else ()
        arcs: tuple[Kind, ...] = ("left", "right") if len(self.stack) > 1 else ()
        return shift + arcs

    def apply(self, action: Action) -> None:
        """Do what is legal."""
        if action.kind == "shift":
            self.stack.append(self.front)
            self.front += 1
            return
        second, first = self.stack[-2:]
        head, dependent = (first, second) if action.kind == "left" else (second, first)
        self.heads[dependent - 1], self.labels[dependent - 1] = head, action.label
        self.stack[-2:] = [head]


def follow(num_words: int, actions: Iterable[Action]) -> Configuration:
    """The configuration that actions lead to, from a sentence's beginning."""
    configuration = Configuration(num_words)
    for action in actions:
        configuration.apply(action)
    return configuration


def oracle(heads: Sequence[int], labels: Sequence[str]) -> list[Action] | None:
    """The actions that give the tree, an arc as soon as it can be; None if it is not projective.

    Example:
        >>> [action.kind for action in oracle([2, 0, 2], ["det", "root", "punct"])]
        ['shift', 'shift', 'left', 'shift', 'right']
    """
    dependents = [0] * (len(heads) + 1)  # that have no arc yet
    for head in heads:
        dependents[head] += 1
    configuration, actions = Configuration(len(heads)), []
    while legal := configuration.legal():
        action = SHIFT
        if "left" in legal:
            second, first = configuration.stack[-2:]
            if heads[second - 1] == first and not dependents[second]:
                action = Action("left", labels[second - 1])
                dependents[first] -= 1
            elif heads[first - 1] == second and not dependents[first]:
                action = Action("right", labels[first - 1])
                dependents[second] -= 1
        if action.kind not in legal:
            return None
        configuration.apply(action)
        actions.append(action)
    return actions


def projective(heads: Sequence[int]) -> list[int]:
    """The tree with each arc that spans a word from elsewhere lifted, the shortest first.

    A lifted word hangs from its head's head, until no arc crosses another.

    Example:
        >>> projective([3, 4, 0, 3])      # 4 -> 2 spans 3, which does not hang below 4
        [3, 3, 0, 3]
    """
    lifted = list(heads)
    while arcs := [arc for arc in enumerate(lifted, start=1) if not _is_projective(*arc, lifted)]:
        word, head = min(arcs, key=lambda arc: abs(arc[0] - arc[1]))
        lifted[word - 1] = lifted[head - 1]
    return lifted


def _is_projective(word: int, head: int, heads: Sequence[int]) -> bool:
    """Whether all words between the two hang below the head."""
    for between in range(min(word, head) + 1, max(word, head)):
        while between not in (head, 0):
            between = heads[between - 1]
        if between != head:
            return False
    return True
