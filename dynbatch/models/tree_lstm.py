"""Tree-LSTMs: a state for every node of a tree, from those of its children.

Every node is one cell call, and equal calls of all trees run together, whatever the trees' shapes.

Source: Tai, Socher & Manning 2015, Improved semantic representations from tree-structured long
short-term memory networks, arXiv:1503.00075, sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from dynbatch import nodes as F
from dynbatch.arguments import sizes
from dynbatch.cells import cell, stack, sum_tree, total
from dynbatch.errors import DtypeError
from dynbatch.models.initial import Rng, generator, uniform
from dynbatch.models.module import Module
from dynbatch.models.trees import checked_pairs, tree_of_heads
from dynbatch.nodes.node import Node

State = tuple[Node, Node]
"""(h, c) of one node of a tree, (H,) each, as a cell gives it."""


@cell
def binary_leaf(x: Node, p: BinaryTreeLSTM) -> State:
    """A leaf: a node without children, so without forget gates."""
    i, o, u = F.chunk(F.linear(x, p.weight_x, p.bias_x), 3)
    c = F.sigmoid(i) * F.tanh(u)
    return F.sigmoid(o) * F.tanh(c), c


@cell
def binary_compose(left: State, right: State, p: BinaryTreeLSTM) -> State:
    """A node of two children and no token of its own: equations 9-14, N = 2."""
    (h_l, c_l), (h_r, c_r) = left, right
    gates = F.linear(h_l, p.weight_left, p.bias) + F.linear(h_r, p.weight_right)
    i, f_l, f_r, o, u = F.chunk(gates, 5)
    c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(f_l) * c_l + F.sigmoid(f_r) * c_r
    return F.sigmoid(o) * F.tanh(c), c


@cell
def remember(x: Node, child: State, p: ChildSumTreeLSTM) -> State:
    """A child's contribution to its parent: h_k, and f_k ⊙ c_k of equations 4 and 7."""
    h, c = child
    f = F.sigmoid(F.linear(x, p.weight_f_x, p.bias_f) + F.linear(h, p.weight_f_h))
    return h, f * c


@cell
def child_sum_compose(x: Node, total: State, p: ChildSumTreeLSTM) -> State:
    """A node of any number of children, given the sums of what it takes over: equations 2-8."""
    h, kept = total
    i, o, u = F.chunk(F.linear(x, p.weight_x, p.bias) + F.linear(h, p.weight_h), 3)
    c = F.sigmoid(i) * F.tanh(u) + kept
    return F.sigmoid(o) * F.tanh(c), c


class BinaryTreeLSTM(Module):
    """N-ary Tree-LSTM with N = 2: children are left and right, each with its own forget gate.

        leaf:   i, o = σ(W x + b), one each;  u = tanh(likewise);  c = i ⊙ u
        inner:  i, f_l, f_r, o = σ(U_l h_l + U_r h_r + b'), one each;  u = tanh(likewise)
                c = i ⊙ u + f_l ⊙ c_l + f_r ⊙ c_r
        both:   h = o ⊙ tanh(c)

    As for the constituency trees of the source, tokens are in the leaves only. Leaves and inner
    nodes have a bias each, where the source has one.

    Args:
        input_size, hidden_size: features of a token, I, and of h and c, H.
        rng: generator or seed of the initial values, uniform in ±1/√H as the LSTM's.

    Parameters: weight_x (3H, I), bias_x (3H,) of i, o, u; weight_left, weight_right (5H, H),
        bias (5H,) of i, f_l, f_r, o, u.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> tree_lstm = models.BinaryTreeLSTM(4, 8)
        >>> with db.Graph() as graph:
        ...     xs = F.constant(graph, 1.0, (3, 4))
        ...     hs, root = tree_lstm(xs, [(1, 2), (0, 3)])  # (0 (1 2)): pairs are nodes 3 and 4
        ...     hs.value.shape, root.value.shape
        ((5, 8), (8,))
    """

    def __init__(self, input_size: int, hidden_size: int, *, rng: Rng = None) -> None:
        sizes(self, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        rng, h = generator(rng), hidden_size
        self.weight_x = uniform(rng, (3 * h, input_size), h)
        self.bias_x = uniform(rng, (3 * h,), h)
        self.weight_left = uniform(rng, (5 * h, h), h)
        self.weight_right = uniform(rng, (5 * h, h), h)
        self.bias = uniform(rng, (5 * h,), h)

    def leaf(self, x: Node) -> State:
        """(h, c) of a leaf with token x (I,)."""
        state: State = binary_leaf(x, self)
        return state

    def compose(self, left: State, right: State) -> State:
        """(h, c) of a node from those of its children."""
        state: State = binary_compose(left, right, self)
        return state

    def __call__(self, xs: Node, pairs: ArrayLike) -> tuple[Node, Node]:
        """h of all nodes of one tree, (2T - 1, H), and h of its root, (H,).

        Args:
            xs:    the leaves, (T, I), T >= 1.
            pairs: the inner nodes bottom-up, (T - 1, 2) integers: pair k is node T + k, and joins
                (left, right), two nodes of smaller numbers; leaves are nodes 0 … T - 1.

        Raises:
            ShapeError: the pairs are not those of one tree: see `models.trees`.
        """
        joined = checked_pairs("BinaryTreeLSTM", xs, pairs)
        states = binary_compose.tree(binary_leaf.each(xs, self), joined, self)
        hs, _ = stack(states)
        return hs, states[-1][0]


class ChildSumTreeLSTM(Module):
    """Child-Sum Tree-LSTM: any number of children without an order, a token in every node.

        h̃ = Σ_k h_k over the children;  f_k = σ(W_f x + U_f h_k + b_f), one for each child
        i, o = σ(W x + U h̃ + b), one each;  u = tanh(likewise)
        c = i ⊙ u + Σ_k f_k ⊙ c_k;  h = o ⊙ tanh(c)

    Args:
        input_size, hidden_size: features of a token, I, and of h and c, H.
        rng: generator or seed of the initial values, uniform in ±1/√H as the LSTM's.

    Parameters: weight_x (3H, I), weight_h (3H, H), bias (3H,) of i, o, u; weight_f_x (H, I),
        weight_f_h (H, H), bias_f (H,) of the forget gates.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import models
        >>> from dynbatch import nodes as F
        >>> tree_lstm = models.ChildSumTreeLSTM(4, 8)
        >>> with db.Graph() as graph:
        ...     xs = F.constant(graph, 1.0, (3, 4))     # "she sees stars": both hang from "sees"
        ...     hs, root = tree_lstm(xs, heads=[1, -1, 1])
        ...     hs.value.shape, root.value.shape
        ((3, 8), (8,))
    """

    def __init__(self, input_size: int, hidden_size: int, *, rng: Rng = None) -> None:
        sizes(self, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        rng, h = generator(rng), hidden_size
        self.weight_x = uniform(rng, (3 * h, input_size), h)
        self.weight_h = uniform(rng, (3 * h, h), h)
        self.bias = uniform(rng, (3 * h,), h)
        self.weight_f_x = uniform(rng, (h, input_size), h)
        self.weight_f_h = uniform(rng, (h, h), h)
        self.bias_f = uniform(rng, (h,), h)

    def compose(self, x: Node, children: Sequence[State] = ()) -> State:
        """(h, c) of a node with token x (I,) from those of its children, a list of states.

        Raises:
            DtypeError: `children` is one state.
        """
        if isinstance(children, Node):
            raise DtypeError.at_caller(
                "ChildSumTreeLSTM.compose: children is one state, not a list of states.\n"
                "  rule: compose(x, states), for any number of children\n"
                "  fix:  compose(x, [state]); of a leaf compose(x)"
            )
        taken = [remember(x, child, self) for child in children]
        below = total(taken) if taken else (self.hidden_size, self.hidden_size)
        state: State = child_sum_compose(x, below, self)
        return state

    def __call__(self, xs: Node, heads: ArrayLike) -> tuple[Node, Node]:
        """h of all nodes of one tree, (T, H) in the order of xs, and h of its root, (H,).

        Args:
            xs:    the nodes' tokens, (T, I), T >= 1.
            heads: T integers: node t hangs from node heads[t], the root from -1. CoNLL-U counts
                from 1: subtract 1.

        Raises:
            ShapeError: the heads are not those of one tree: see `models.trees`.
        """
        tree = tree_of_heads("ChildSumTreeLSTM", xs, heads)
        zeros = (self.hidden_size, self.hidden_size)
        states = sum_tree(child_sum_compose, remember, tree, zeros, xs, self)
        hs, _ = stack(states)
        return hs, states[tree.root][0]
