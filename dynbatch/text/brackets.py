"""Trees in brackets, `(3 (2 good) (2 film))`, the form of treebanks and of SST."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dynbatch.arguments import refused
from dynbatch.errors import ArgumentError, DataError
from dynbatch.text.lines import bad_line, numbered_lines, some

State = TypeVar("State")
Rows = list[tuple[str, str, int]]
"""(label, word, number of children) of each node, children before their parent."""
Fault = tuple[str, str]
"""What is wrong with a line, and its fix."""

MOST_SHOWN = 60
"""Characters of a tree that an error shows."""

_TOKENS = re.compile(r"[()]|[^\s()]+")
_RULE = "(label word) or (label tree tree …)"
_FIX = "write a node so; brackets that are words are -LRB- and -RRB-"
_ONLY_TREES = "keep trees only; the label of a whole tree is its root's, (label tree tree …)"


@dataclass(slots=True, eq=False, repr=False)
class LabelledTree:
    """A node of a tree with all that is below it: a word, or children.

    Trees are equal if their shapes, labels and words are. However deep a tree is, nothing here
    recurses, `pickle` and `copy.deepcopy` included.

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

    def __repr__(self) -> str:
        return f"LabelledTree.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._rows() == other._rows() if isinstance(other, LabelledTree) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Callable[[Rows], LabelledTree], tuple[Rows]]:
        return _tree_of, (self._rows(),)

    def _rows(self) -> Rows:
        """The tree without nesting: each of its nodes, and how many children it has."""
        return [(node.label, node.word, len(node.children)) for node in self.nodes()]

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
        visited, waiting = [], [self]
        while waiting:  # no recursion: a tree may be as deep as it has words
            node = waiting.pop()
            visited.append(node)
            waiting += node.children
        return visited[::-1]

    def fold(
        self, leaf: Callable[[LabelledTree], State], join: Callable[..., State]
    ) -> list[State]:
        """One state for each node, in the order of `nodes()`; the root's is the last.

        Args:
            leaf: leaf(node) makes the state of a node with a word. It may be anything; None, say,
                where `join` reads the word itself.
            join: join(node, *states) makes that of a node with children, from theirs. Where both
                call a `db.cell`, all calls that can run together do, in this tree and in others.

        Raises:
            ArgumentError: `join` does not take as many states as a node has children.
        """
        done: list[State] = []
        waiting: list[State] = []
        for node in self.nodes():
            count = len(node.children)
            if count:
                try:
                    state = join(node, *waiting[-count:])
                except TypeError:
                    if _takes(join, 1 + count):
                        raise
                    raise _wrong_number(node) from None
                del waiting[-count:]
            else:
                state = leaf(node)
            waiting.append(state)
            done.append(state)
        return done


def _tree_of(rows: Rows) -> LabelledTree:
    waiting: list[LabelledTree] = []
    for label, word, count in rows:
        first = len(waiting) - count
        node = LabelledTree(label, word, waiting[first:])
        waiting[first:] = [node]
    return waiting[0]


def _takes(join: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many arguments; True if nobody knows."""
    try:
        signature = inspect.signature(join)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _wrong_number(node: LabelledTree) -> ArgumentError:
    count = len(node.children)
    text = str(node)
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
    return refused(
        "LabelledTree.fold",
        f"join does not take the node and {count} state{'s' * (count != 1)}, those of the "
        f"children of\n  {shown}",
        "join(node, *states): the node first, then one state for each of its children",
        "def join(node, *states), which may put them together two by two:\n"
        "        functools.reduce(compose, states)",
    )


def read_trees(path: str | Path) -> list[LabelledTree]:
    """The trees of a UTF-8 file in brackets, one a line or over several lines.

    A node is `(label word)` or `(label tree tree …)`; brackets around a whole tree that have no
    label are left out. A bracket that is a word is written -LRB- or -RRB-.

    Raises:
        DataError: the file cannot be read or holds no tree, or a node is neither of these, or
            brackets do not match. Names file and line.
    """
    return some("tree", path, list(_trees(str(path), numbered_lines(path))), _RULE)


def _trees(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[LabelledTree]:
    path: list[LabelledTree] = []  # the nodes that are open, from the root down
    begin, start = 0, ""
    for number, line in lines:
        for token in _TOKENS.findall(line):
            fault: Fault | None = None
            if token == "(":
                begin, start = (begin, start) if path else (number, line)
                path.append(LabelledTree(""))
            elif not path:
                fix = "take it away, or open a bracket before it" if token == ")" else _ONLY_TREES
                fault = f"{token!r} stands outside of a tree", fix
            elif token == ")":
                fault = _fault(node := path.pop(), path)
                if not fault and path:
                    path[-1].children.append(node)
                elif not fault:
                    yield node if node.label else node.children[0]
            elif not path[-1].label and not path[-1].children:
                path[-1].label = token
            elif path[-1].word or path[-1].children:
                fault = f"{token!r} stands beside another word or tree", _own_node(token)
            else:
                path[-1].word = token
            if fault:
                raise bad_line(f"{name}:{number}", fault[0], line, _RULE, fault[1])
    if path:
        problem = "a tree begins here that does not end"
        raise bad_line(f"{name}:{begin}", problem, start, _RULE, "close its brackets")


def _fault(node: LabelledTree, above: Sequence[LabelledTree]) -> Fault | None:
    """The fault of a node whose brackets end, and the fix; None if there is none."""
    if not node.word and not node.children:
        return "a node without a word and without a tree below it", _FIX
    if above and (word := above[-1].word):
        return "a node with a word and a tree below it", _own_node(word)
    if node.label or (not above and len(node.children) == 1):
        return None
    return "a node without a label", _FIX


def _own_node(word: str) -> str:
    return f"give each word brackets and a label of its own: (? {word})"
