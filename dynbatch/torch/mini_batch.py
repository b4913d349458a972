"""One mini-batch of a PyTorch model: a graph that is run in forward and differentiated later."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynbatch import nodes as F
from dynbatch.arguments import shown
from dynbatch.cells.calls.results import structure_of
from dynbatch.errors import BackendError, DtypeError, GraphError, NoGradientError
from dynbatch.graph import Graph
from dynbatch.kernels.runtime.precision import Rounding
from dynbatch.kernels.runtime.stream import stream_of
from dynbatch.nodes.node import Node
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from dynbatch.torch.sharing import FLOATS, tensor_of

Sentence = tuple[Any, ...]

RULE = "the function returns a node, or a tuple of nodes, the same number for all sentences"


class MiniBatch:
    """The graph of one mini-batch, open from forward to backward.

    Args:
        build:      (graph, *sentence) -> a node or a tuple of nodes.
        sentences:  the arguments of each sentence. Tensors of floats become nodes, other tensors
            arrays.
        parameters: what `build` reads, for their gradients.
        device, dtype, seed: of the graph.
        grad:       False keeps nothing for backward.
        rounding:   further arguments of the graph.

    Attributes:
        inputs: the tensors of floats among the arguments, sentence by sentence.
        parts:  how many nodes the function returns for a sentence; None for one that is not in a
            tuple.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        sentences: Sequence[Sentence],
        parameters: Sequence[Parameter],
        device: str,
        dtype: str,
        seed: int | None,
        grad: bool,
        rounding: Rounding,
    ) -> None:
        self._build = build
        self._sentences = sentences
        self._parameters = parameters
        self.inputs = [part for sentence in sentences for part in sentence if _is_input(part)]
        self.parts: int | None = None
        self._opened = ExitStack()
        self.graph = self._opened.enter_context(
            Graph(device, dtype, grad=grad, seed=seed, **rounding)
        )
        # At its end nobody reads a node any more; kept ones would be copied for that.
        self._opened.callback(self.graph._kept.clear)
        self._nodes: list[Node] = []
        self._outputs: list[Node] = []
        # Nodes and their graph are a cycle, which the garbage collector would find late.
        self._close = weakref.finalize(self, self._opened.close)

    def forward(self, needs_gradient: Sequence[bool]) -> tuple[Tensor, ...]:
        """Build the graph and run it.

        Args:
            needs_gradient: of each input.

        Returns:
            the outputs, sentence by sentence.
        """
        try:
            self._build_all(needs_gradient)
            if self.graph.device.is_cuda:
                return tuple([tensor_of(node.device_value) for node in self._outputs])
            return tuple([tensor_of(value) for value in self.graph.values(self._outputs)])
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Free the graph."""
        self._close()

    def _build_all(self, needs_gradient: Sequence[bool]) -> None:
        needs = iter(needs_gradient)
        for number, sentence in enumerate(self._sentences):
            parts = [
                self._input(part, next(needs)) if _is_input(part) else _given(part)
                for part in sentence
            ]
            returned = structure_of(self._build(self.graph, *parts))
            nodes = returned if isinstance(returned, tuple) else (returned,)
            if number == 0:
                self.parts = len(returned) if isinstance(returned, tuple) else None
            for node in nodes:
                if not isinstance(node, Node):
                    raise _wrong_output(number, shown(node))
            if len(nodes) != (self.parts or 1):
                said = f"{len(nodes)} nodes, and for the first sentence {self.parts or 1}"
                raise _wrong_output(number, said)
            self._outputs += nodes
        self._sentences, self.inputs = (), []  # the nodes have copies

    def _input(self, tensor: Tensor, needs_gradient: bool) -> Node:
        node = F.input(self.graph, tensor.detach())
        self._nodes.append(node)
        return node.keep() if needs_gradient else node

    def backward(
        self, gradients: Sequence[Tensor | None], needs_gradient: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of the inputs, then of the parameters.

        The graph ends with it, unless PyTorch was told `retain_graph=True`.

        Args:
            gradients:      of the outputs; None where an output was not used.
            needs_gradient: of each input, then of each parameter.

        Raises:
            GraphError: the graph has ended.
        """
        if not self._close.alive:
            raise GraphError(
                "Batched: a second backward through one mini-batch.\n"
                "  rule: its values are freed by the first\n"
                "  fix:  (loss_a + loss_b).backward(), or loss_a.backward(retain_graph=True) before"
            )
        before = [parameter.gradient_state for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.put_aside()
        try:
            return self._gradients(gradients, needs_gradient)
        finally:
            for parameter, state in zip(self._parameters, before, strict=True):
                parameter.put_aside()  # its memory is a tensor's now
                parameter.put_back(state)
            if not _is_retained():
                self._close()

    def _gradients(
        self, gradients: Sequence[Tensor | None], needs_gradient: Sequence[bool]
    ) -> list[Tensor | None]:
        pairs = zip(self._outputs, gradients, strict=True)
        used = [(node, gradient) for node, gradient in pairs if gradient is not None]
        if not used:
            return [None] * len(needs_gradient)
        try:
            self.graph.backward([node for node, _ in used], gradient=[g for _, g in used])
        except NoGradientError:  # these outputs depend on nothing that is trained
            return [None] * len(needs_gradient)
        wanted = [n for n, needs in zip(self._nodes, needs_gradient, strict=False) if needs]
        of_inputs = iter(self._gradients_of(wanted))
        needs_inputs = needs_gradient[: len(self._nodes)]
        of_leaves = [next(of_inputs) if needs else None for needs in needs_inputs]
        return [*of_leaves, *[self._gradient_of(parameter) for parameter in self._parameters]]

    def _gradients_of(self, nodes: Sequence[Node]) -> list[Tensor]:
        if self.graph.device.is_cuda:
            return [tensor_of(node.device_gradient) for node in nodes]
        return [tensor_of(node.gradient) for node in nodes]

    def _gradient_of(self, parameter: Parameter) -> Tensor | None:
        gradient = parameter.grad
        if gradient is None:
            return None
        array = gradient.dense() if isinstance(gradient, RowSparse) else gradient
        stream_of(self.graph.device).flush()
        return tensor_of(array)


class Differentiated(torch.autograd.Function):  # type: ignore[misc]
    """A mini-batch as one function of its inputs and the parameters.

    The parameters are saved so that PyTorch refuses a backward after they were changed in place.
    """

    @staticmethod
    def forward(ctx: Any, batch: MiniBatch, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(batch.inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count:])
        ctx.batch = batch
        return batch.forward(ctx.needs_input_grad[1 : 1 + count])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        return None, *ctx.batch.backward(gradients, ctx.needs_input_grad[1:])


def _is_retained() -> bool:
    """Whether the backward that runs now was told `retain_graph=True`.

    PyTorch has no public name for it; where a release lacks this one, graphs end with a backward.
    """
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is not None and bool(ask())


def require_alike(tensors: Sequence[Tensor]) -> tuple[str, str]:
    """The device, "cpu" or "cuda", and the dtype of all tensors; float32 on the CPU for none.

    Raises:
        DtypeError:   their dtypes differ, or are neither float32 nor float64.
        BackendError: they are on several devices, or on one that is neither the CPU nor CUDA.
    """
    if not tensors:
        return "cpu", "float32"
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype or tensor.dtype not in FLOATS:
            kind = str(tensor.dtype)
            kind += "" if tensor.dtype == first.dtype else f" beside {first.dtype}"
            raise DtypeError.at_caller(
                f"Batched: a tensor {tuple(tensor.shape)} of {kind}.\n"
                "  rule: inputs and parameters have one dtype, float32 or float64\n"
                "  fix:  tensor.float() or module.double(); under autocast, tensor.float() too"
            )
        if tensor.device != first.device or tensor.device.type not in ("cpu", "cuda"):
            raise BackendError(
                f"Batched: a tensor {tuple(tensor.shape)} on {tensor.device}, the first on "
                f"{first.device}.\n  rule: inputs and parameters are on the CPU or on one GPU\n"
                f"  fix:  tensor.to({str(first.device)!r}) or module.to(...)"
            )
    return first.device.type, str(first.dtype).removeprefix("torch.")


def _is_input(part: Any) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point()


def _given(part: Any) -> Any:
    """Ids, labels and masks as arrays; anything but a tensor as it is."""
    if not isinstance(part, Tensor):
        return part
    return part.detach().cpu().numpy()


def _wrong_output(number: int, given: str) -> DtypeError:
    return DtypeError.at_caller(
        f"Batched: for sentence {number} the function returned {given}.\n  rule: {RULE}\n"
        "  fix:  return the node itself, not its value; numbers become nodes by F.input"
    )
