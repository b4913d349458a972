"""Trees in brackets, `(3 (2 good) (2 film))`, the form of treebanks and of SST."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dynbatch.errors import DataError
from dynbatch.text.lines import bad_line, read_lines

State = TypeVar("State")

_TOKENS = re.compile(r"[()]|[^\s()]+")
_RULE = "(label word) or (label tree tree …)"
_FIX = "write a node so; brackets that are words are -LRB- and -RRB-"


@dataclass(slots=True)
class LabelledTree:
    """A node of a tree with all that is below it: a word, or children.

    Example:
        >>> tree = LabelledTree.parse("(3 (2 good) (4 (2 old) (2 film)))")
        >>> tree.words, [node.label for node in tree.nodes()]
        (['good', 'old', 'film'], ['2', '2', '2', '4', '3'])
        >>> tree.fold(lambda leaf: len(leaf.word), lambda node, left, right: left + right)
        [4, 3, 4, 7, 11]
    """

    label: str
    word: str = ""
    children: list[LabelledTree] = field(default_factory=list)

    def __str__(self) -> str:
        """The tree in brackets, as `parse` reads it."""
        text = ""
        waiting: list[LabelledTree | str] = [self]
        while waiting:
            node = waiting.pop()
            if isinstance(node, str):
                text += node
            else:
                text += f"{' ' if text else ''}({node.label}{' ' * bool(node.word)}{node.word}"
                waiting += [")", *reversed(node.children)]
        return text

    @classmethod
    def parse(cls, text: str) -> LabelledTree:
        """The tree of a text that holds one.

        Raises:
            DataError: it does not.
        """
        trees = list(_trees("LabelledTree.parse", enumerate(text.split("\n"), start=1)))
        if len(trees) != 1:
            raise DataError(f"LabelledTree.parse: {len(trees)} trees, not one.\n  rule: {_RULE}")
        return trees[0]

    @property
    def words(self) -> list[str]:
        """The words of the leaves, from left to right."""
        return [node.word for node in self.nodes() if not node.children]

    def nodes(self) -> list[LabelledTree]:
        """All nodes, children before their parent and from left to right; the root is the last."""
        found, waiting = [], [self]
        while waiting:  # no recursion: a tree may be as deep as it has words
            node = waiting.pop()
            found.append(node)
            waiting += node.children
        return found[::-1]

    def fold(
        self, leaf: Callable[[LabelledTree], State], join: Callable[..., State]
    ) -> list[State]:
        """One state for each node, in the order of `nodes()`; the root's is the last.

        Args:
            leaf: leaf(node) makes the state of a node with a word.
            join: join(node, *states) makes that of a node with children, from theirs. Where both
                call a `db.cell`, all calls that can run together do, in this tree and in others.
        """
        done: list[State] = []
        waiting: list[State] = []
        for node in self.nodes():
            count = len(node.children)
            if count:
                state = join(node, *waiting[-count:])
                del waiting[-count:]
            else:
                state = leaf(node)
            waiting.append(state)
            done.append(state)
        return done


def read_trees(path: str | Path) -> list[LabelledTree]:
    """The trees of a UTF-8 file in brackets, one a line or over several lines.

    A node is `(label word)` or `(label tree tree …)`; brackets around a whole tree that have no
    label are left out. A bracket that is a word is written -LRB- or -RRB-.

    Raises:
        DataError: the file cannot be read or holds no tree, or a node is neither of these, or
            brackets do not match. Names file and line.
    """
    trees = list(_trees(str(path), read_lines(path)))
    if not trees:
        raise DataError(f"{path}: no tree.\n  rule: {_RULE}")
    return trees


def _trees(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[LabelledTree]:
    """The trees of numbered lines."""
    path: list[LabelledTree] = []  # the nodes that are open, from the root down
    begin, start = 0, ""
    for number, line in lines:
        for token in _TOKENS.findall(line):
            problem = ""
            if token == "(":
                begin, start = (begin, start) if path else (number, line)
                path.append(LabelledTree(""))
            elif not path:
                problem = f"{token!r} stands outside of a tree"
            elif token == ")":
                problem = _fault(node := path.pop(), path)
                if not problem and path:
                    path[-1].children.append(node)
                elif not problem:
                    yield node if node.label else node.children[0]
            elif not path[-1].label and not path[-1].children:
                path[-1].label = token
            elif path[-1].word or path[-1].children:
                problem = f"{token!r} stands beside another word or tree"
            else:
                path[-1].word = token
            if problem:
                raise bad_line(f"{name}:{number}", problem, line, _RULE, _FIX)
    if path:
        problem = "a tree begins here that does not end"
        raise bad_line(f"{name}:{begin}", problem, start, _RULE, "close its brackets")


def _fault(node: LabelledTree, above: Sequence[LabelledTree]) -> str:
    """What is wrong with a node whose brackets end, or ""."""
    if not node.word and not node.children:
        return "a node without a word and without a tree below it"
    if above and above[-1].word:
        return "a node with a word and a tree below it"
    return "" if node.label or (not above and len(node.children) == 1) else "a node without a label"
