"""`node_types()`: each type of node with its shapes, what it batches with, and its kernels.

All of it is read from the types themselves: rules of shapes, docstrings that say what batches, and
the code that names the kernels: their hooks, and for types that only move rows the moves of a step.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator, Mapping
from textwrap import fill
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from dynbatch.batcher.steps.places import move_gradients_back, move_rectangles
from dynbatch.blocks.call import BlockCall
from dynbatch.kernels.own_kernel import CudaKernel
from dynbatch.kernels.runtime.dispatch import C_KERNELS, CUDA_KERNELS
from dynbatch.nodes.operation import Operation
from dynbatch.nodes.shape.structure import Structural

KERNELS = "dynbatch.kernels."

HOOKS = ("forward_batch", "backward_batch", "forward_backward")
"""Methods of a type that call kernels."""

COLUMNS = 80
"""Of the text of a type."""


class NodeType(NamedTuple):
    """The description of a node type. `str()` gives it in a few lines.

    Args:
        name:         of the class.
        computes:     the first line of its docstring: the formula, as a rule.
        shape:        of inputs and value.
        batches_with: the nodes that share a kernel with one of it.
        kernels:      by name, as `kernels` has them, the languages that each is there in: "NumPy",
            the reference, always; "C"; "CUDA". A `CudaKernel` of a program's own type is there in
            CUDA.
        other_kernels: what runs where no kernel has a name: those that were generated for a cell,
            those of a block's operators, or none, and why.
    """

    name: str
    computes: str
    shape: str
    batches_with: str
    kernels: Mapping[str, tuple[str, ...]]
    other_kernels: str = ""

    def __str__(self) -> str:
        by_languages: dict[tuple[str, ...], list[str]] = {}
        for kernel, languages in self.kernels.items():
            by_languages.setdefault(languages, []).append(kernel)
        kernels = [
            f"{', '.join(names)} ({', '.join(languages)})"
            for languages, names in by_languages.items()
        ]
        kernels += [self.other_kernels] if self.other_kernels else []
        lines = [("shape", self.shape), ("batches with", self.batches_with)]
        lines += zip(["kernels", *[""] * len(kernels)], kernels, strict=False)
        told = [_wrapped(f"  {head:<14}", text) for head, text in lines if text]
        first = [_wrapped("  ", self.computes)] if self.computes else []
        return "\n".join([self.name, *first, *told])


def node_types() -> dict[str, NodeType]:
    """Every type of node by name, those of the program's own too: what `dynbatch nodes` prints.

    A type of the program's own that is named as one of ours, or as another, stands under its module
    and name. A block's calls stand under `BlockCall`, whatever the block.

    Example:
        >>> import dynbatch as db
        >>> print(db.node_types()["Softmax"])
        Softmax
          y_i = exp(x_i) / Σ_j exp(x_j). dx = y ⊙ (dy - Σ_j dy_j y_j).
          shape         x (…) -> (…)
          batches with  every other one of its type, width and dim, whatever the
                        lengths; the width may be a length too.
          kernels       softmax.softmax, softmax.softmax_backward (NumPy, C, CUDA)
    """
    types = sorted({each for each in _below(Operation) if _is_listed(each)}, key=_order)
    types_of: dict[str, NodeType] = {}
    for each in types:
        name = each.__name__
        if name in types_of:  # another's
            name = f"{each.__module__}.{each.__qualname__}"
        types_of[name] = NodeType(
            name,
            (each.__doc__ or "").strip().split("\n")[0],
            _shape(each),
            _section(each, "Batches with"),
            _kernels(each),
            _section(each, "Kernels"),
        )
    return types_of


def _order(node_type: type[Operation]) -> tuple[str, bool, str, str]:
    """By name; of one name, ours first."""
    module = node_type.__module__
    return node_type.__name__, not node_type.is_built_in, module, node_type.__qualname__


def _below(base: type[Operation]) -> Iterator[type[Operation]]:
    """All types below one; of a block's types, `BlockCall` alone."""
    for each in base.__subclasses__():
        yield each
        if each is not BlockCall:
            yield from _below(each)


def _is_listed(node_type: type[Operation]) -> bool:
    """Whether graphs run nodes of the type itself: not of a base, nor of a trace's stand-in."""
    if (node_type.__doc__ or "").startswith("Base of") or ".testing." in node_type.__module__:
        return False
    return not node_type.is_built_in or bool(_section(node_type, "Batches with"))


def _section(node_type: type[Operation], heading: str) -> str:
    """The text under a heading in the docstring of a type, or else of a base."""
    form = re.compile(rf"^ *{heading}:(.*(?:\n(?! *[A-Z][\w ]*:)(?! *$).*)*)", re.MULTILINE)
    for base in node_type.__mro__[: node_type.__mro__.index(Operation)]:
        section = form.search(vars(base).get("__doc__") or "")
        if section:
            return " ".join(section[1].split())
    return ""


def _shape(node_type: type[Operation]) -> str:
    """The type's rule of shapes, or what its docstring says of one that is no line."""
    return node_type.shape_rule.replace("|", " or ") or _section(node_type, "Shape")


def _wrapped(begin: str, text: str) -> str:
    return fill(text, COLUMNS, initial_indent=begin, subsequent_indent=" " * len(begin))


def _kernels(node_type: type[Operation]) -> dict[str, tuple[str, ...]]:
    """The kernels that run a type, by name: see `NodeType`."""
    hooks = [getattr(node_type, name) for name in HOOKS if hasattr(node_type, name)]
    if issubclass(node_type, Structural):
        hooks = [move_rectangles, move_gradients_back]
    seen: set[CodeType] = set()
    return dict([kernel for hook in hooks for kernel in _named(hook, node_type, seen)])


def _named(
    function: Callable[..., Any], node_type: type[Operation], seen: set[CodeType]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kernels that code names, directly or through functions, each with its languages."""
    function = getattr(function, "__func__", function)
    label = f"{function.__module__.removeprefix(KERNELS)}.{function.__name__}"
    has = {"NumPy": True, "C": label in C_KERNELS, "CUDA": label in CUDA_KERNELS}
    if function.__module__.startswith(KERNELS) and (has["C"] or has["CUDA"]):
        if not function.__name__.startswith("workspace"):  # which tells bytes
            yield label, tuple([language for language, is_there in has.items() if is_there])
        return
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return
    seen.add(function.__code__)
    for value in _values(function.__code__, function.__globals__, node_type):
        if isinstance(value, CudaKernel):
            yield value.name, ("CUDA",)
        elif isinstance(value, FunctionType | MethodType):
            if value.__module__.startswith("dynbatch.") or value.__module__ == node_type.__module__:
                yield from _named(value, node_type, seen)


def _values(code: CodeType, names: Mapping[str, Any], node_type: type[Operation]) -> Iterator[Any]:
    """Values that code names: globals, attributes of modules and classes, and the type itself."""
    value = None
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_GLOBAL"):
            value = names.get(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            is_owner = isinstance(value, ModuleType | type)
            value = getattr(value, step.argval, None) if is_owner else None
        elif step.opname == "LOAD_CONST" and isinstance(step.argval, CodeType):
            yield from _values(step.argval, names, node_type)
            continue
        else:
            value = node_type if step.argval == "cls" else None
        yield value
