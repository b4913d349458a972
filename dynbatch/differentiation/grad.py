"""`grad`, which makes of a function another that builds its gradient, and `hvp`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from typing import Any

from dynbatch import nodes as F
from dynbatch.arguments import refused, shown
from dynbatch.differentiation.pullback import Pullback, Target
from dynbatch.nodes.node import Node
from dynbatch.nodes.plain import plain_nodes
from dynbatch.parameter import Parameter

Function = Callable[..., Any]


class Gradient:
    """The gradient of a function; `grad` makes it."""

    def __init__(self, function: Function, wrt: tuple[int | Parameter, ...], is_one: bool) -> None:
        update_wrapper(self, function)
        self.__name__ = f"{name_of(function)}_gradient"
        self.__qualname__ = self.__name__
        self._function = function
        self._wrt = wrt
        self._is_one = is_one

    def __call__(self, *positional: Any, **named: Any) -> Any:
        targets = [self._target(target, positional) for target in self._wrt]
        graph = _graph_among([*targets, *positional, *named.values()])
        start = 0 if graph is None else len(graph.nodes)
        with plain_nodes():
            y = self._function(*positional, **named)
        self._check(y)
        gradients = Pullback(y, targets, start).run()
        return gradients[0] if self._is_one else tuple(gradients)

    def _target(self, wrt: int | Parameter, positional: Sequence[Any]) -> Target:
        if isinstance(wrt, Parameter):
            return wrt
        if not -len(positional) <= wrt < len(positional):
            raise self._refused(
                f"wrt is {wrt}, and the call has {len(positional)} arguments by position",
                "wrt is the place of an argument, from 0, or a parameter",
                "give that argument by position, or another wrt",
            )
        argument = positional[wrt]
        if not isinstance(argument, Node | Parameter):
            raise self._refused(
                f"argument {wrt} is {shown(argument)}",
                "a gradient is taken with respect to a node or a parameter",
                "F.input(graph, array) makes a node of an array",
            )
        return argument

    def _check(self, y: object) -> None:
        if not isinstance(y, Node):
            raise self._refused(
                f"the function returns {shown(y)}", "it returns a node, a scalar",
                "return one loss; of several results, F.sum of them",
            )  # fmt: skip
        if y.ndim:
            raise self._refused(
                f"the function returns shape {y.shape}", "a gradient is that of a scalar",
                "reduce it, as by F.sum(y), or F.sum(y * v) for a vector-Jacobian product",
            )  # fmt: skip

    def _refused(self, problem: str, rule: str, fix: str) -> Exception:
        return refused(f"grad of {name_of(self._function)!r}", problem, rule, fix)


def name_of(function: Function) -> str:
    name = getattr(function, "__qualname__", "function").removesuffix(".__call__")
    return str(name.rsplit(".", 1)[-1].strip("<>"))


def _graph_among(arguments: Iterable[Any]) -> Any:
    for argument in arguments:
        if isinstance(argument, Node):
            return argument.graph
        if hasattr(argument, "is_trace"):
            return argument
        if isinstance(argument, list | tuple):
            graph = _graph_among(argument)
            if graph is not None:
                return graph
    return None


def grad(
    function: Function, wrt: int | Parameter | Sequence[int | Parameter] = 0
) -> Callable[..., Any]:
    """The gradient of a function, ∂y/∂x, as a function that builds it as nodes.

    Since the gradient is made of nodes, it can be read, be batched across sentences, be a part of a
    loss whose `graph.backward` gives gradients of parameters (a gradient penalty, a step of
    meta-learning), and be differentiated again. `graph.backward` alone is cheaper where nothing of
    this is needed.

    Args:
        function: builds nodes and returns a scalar (). A block, a plain function, or a gradient.
            What it is given, and what it makes, counts; nodes made before that are not given as
            `wrt` are constants, whatever they were made of.
        wrt: with respect to what: the place of an argument, from 0, that is a node or a parameter;
            or a parameter that the function reads, frozen or not; or several of these.

    Returns:
        a function of the same arguments, which returns a node of the shape of what `wrt` names, and
        a tuple where `wrt` is one. Zeros where the function does not depend on it. A node given in
        two places counts for both.

    Each node's gradient is written by a rule, dx = (∂y/∂x)ᵀ dy, with functions of `F`: that of
    arithmetic, elementwise functions, linear maps, products, reductions, softmax, norms, gates,
    attention, shapes, rows, choices, dropout (with the same mask) and losses. At kinks it follows
    `graph.backward`: 0 for relu at 0, halves for equal values of `F.maximum`, the first of equal
    values for `F.max`. A block inside is what its function builds, and a scan or a cell's call the
    steps of the cell, a node for each operator: right, and slow. Dropout in a scan then draws anew.

    Raises:
        ArgumentError: the function does not return a scalar, `wrt` is not such a place or
            parameter, or the argument there is neither a node nor a parameter.
        GraphError:    y depends on it through a type of node without a rule: a CRF, attention with
            dropout, a type of your own without a `differentiation.rule`; or through dropout, while
            a block is traced.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> def cubes(x):
        ...     return F.sum(x**3)
        >>> with db.Graph() as graph:
        ...     x = F.input(graph, [1.0, 2.0])
        ...     slope = db.grad(cubes)                               # 3 x²
        ...     curvature = db.grad(lambda x: F.sum(slope(x)))       # 6 x
        ...     slope(x).value.tolist(), curvature(x).value.tolist()
        ([3.0, 12.0], [6.0, 12.0])
    """
    if not callable(function):
        raise refused(
            "grad", f"function is {shown(function)}", "a function that returns a scalar node",
            "give the function itself: db.grad(loss)(x), not db.grad(loss(x))",
        )  # fmt: skip
    is_one = not isinstance(wrt, list | tuple)
    places: tuple[Any, ...] = (wrt,) if is_one else tuple(wrt)  # type: ignore[arg-type]
    for target in places:
        if not isinstance(target, int | Parameter) or isinstance(target, bool):
            raise refused(
                f"grad of {name_of(function)!r}", f"wrt is {shown(target)}",
                "wrt is the place of an argument, from 0, or a parameter, or several of these",
                "wrt=0 is the first argument; model.weight a parameter",
            )  # fmt: skip
    return Gradient(function, places, is_one)


def hvp(function: Function) -> Callable[..., Any]:
    """Products of a function's second derivatives with a vector: (x, v, …) -> H v, as nodes.

    H = ∂²y/∂x² is never made: H v = ∂(∂y/∂x · v)/∂x takes a few times what y takes.

    Args:
        function: as for `grad`; its first argument is x.

    Returns:
        a function of x, of v (a node of the shape of x, taken as constant), and of further
        arguments of `function`. It returns a node of the shape of x.

    Raises:
        ArgumentError: as `grad`; or v has another shape than x.
        GraphError:    as `grad`.

    Source: Pearlmutter 1994, Neural Computation 6(1): Fast exact multiplication by the Hessian.

    Example:
        >>> import dynbatch as db
        >>> from dynbatch import nodes as F
        >>> with db.Graph() as graph:
        ...     x, v = F.input(graph, [1.0, 2.0]), F.input(graph, [1.0, 0.0])
        ...     db.hvp(lambda x: x[0] ** 2 * x[1])(x, v).value.tolist()      # H = [[4, 2], [2, 0]]
        [4.0, 2.0]
    """
    gradient = grad(function)

    def along(x: Node, v: Node, *others: Any, **named: Any) -> Node:
        return F.sum(gradient(x, *others, **named) * v)

    def product(x: Any, v: Any, *others: Any, **named: Any) -> Any:
        if not (isinstance(x, Node) and isinstance(v, Node)) or x.shape != v.shape:
            raise refused(
                f"hvp of {name_of(function)!r}", f"x is {shown(x)} and v is {shown(v)}",
                "both are nodes, of one shape", "F.input(graph, array) makes a node of an array",
            )  # fmt: skip
        # Where v is x itself, it is another node, so that it stays constant.
        return second(x, v * 1.0 if v is x else v, *others, **named)

    second = grad(along)
    return product
