"""`Batched`: a PyTorch module whose sentences dynbatch computes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from dynbatch.arguments import refused, shown
from dynbatch.kernels.runtime.precision import FULL, Rounding
from dynbatch.models.module import Module
from dynbatch.torch.mini_batch import Differentiated, MiniBatch, require_alike
from dynbatch.torch.sentences import sentences_of
from dynbatch.torch.sharing import follow, share

Outputs = list[Tensor] | tuple[list[Tensor], ...]


class Batched(nn.Module):  # type: ignore[misc]
    """A function of one sentence as a `torch.nn.Module` of a mini-batch.

    A call builds one graph of all sentences, runs it batched, and returns tensors. Gradients flow
    through it: to the tensors that it was given, and into `grad` of its `parameters()`, so that
    PyTorch's optimizers, clipping and hooks work as they do elsewhere.

    Args:
        function:   (graph, params, *sentence) -> a node, or a tuple of nodes. It is called once for
            each sentence with one entry of each argument of the call. A tensor of floats arrives as
            a node, another tensor (ids, labels) as an array, anything else as it is: a tree, say.
        parameters: where the function reads parameters, and what it is given as `params`:

            * a model of dynbatch, or a dict of `db.Parameter`: as it is. `module.weights` holds a
              `torch.nn.Parameter` of the same name for each.
            * a module of PyTorch: its attributes by their names, with a `db.Parameter` for each of
              its parameters. `module.weights` is the module itself.
            * None.

            Either way both see one memory: nothing is copied, and an update by one is seen by the
            other. PyTorch's tensor decides the device, the dtype, and whether the parameter is
            trained (`requires_grad`).
        matmul, precision: what factors of products with weights, and values, are rounded to, as in
            `db.Graph`; outputs and gradients are float32 anyway. `torch.autocast` changes nothing
            here.

    A call is `module(*arguments)`; each argument is a list with an entry for each sentence, a
    `Packed`, or a nested tensor. It returns a list with a tensor for each sentence, in the shape of
    its node, or a tuple of such lists where the function returns a tuple: `torch.cat` or
    `torch.stack` make one tensor of a list. No sentences give an empty list.

    The graph lives from the call to the backward pass (unless `retain_graph=True`), or until its
    outputs are gone; under `torch.no_grad()` it keeps nothing for backward and ends with the call.
    Masks of dropout follow from PyTorch's generator; `train()` and `eval()` reach a model of
    dynbatch too. `torch.compile` leaves a call as it is, and compiles what stands around it.

    Raises:
        ArgumentError: the function cannot be called, or arguments or parameters have another form,
            or the module's parameters have other names than when this was made.
        MissingParameterError: the function reads what is not a parameter of the module: a buffer,
            or what `weight_norm`, `prune` or a parametrization computes.
        ShapeError:    arguments have different numbers of sentences.
        DtypeError:    tensors are neither all float32 nor all float64; or the function returns
            something else than nodes.
        BackendError:  tensors are on several devices.
        GraphError:    a node of another mini-batch, or a second backward without `retain_graph`.
        ArgumentError: in a call: `matmul` or `precision` is none that a graph of the dtype has.
        NumericError:  in backward: a gradient that arrives is NaN or infinite.
        RuntimeError:  by PyTorch: a second derivative, or parameters changed before backward.

    Example:
        >>> import torch
        >>> from dynbatch import models, nodes as F
        >>> from dynbatch.torch import Batched
        >>> lstm = Batched(lambda graph, lstm, x: lstm(x), models.LSTM(4, 8))
        >>> xs = [torch.ones(length, 4, requires_grad=True) for length in (2, 5)]
        >>> [tuple(h.shape) for h in lstm(xs)]
        [(2, 8), (5, 8)]
        >>> torch.cat(lstm(xs)).sum().backward()
        >>> tuple(xs[1].grad.shape), lstm.weights.get_parameter("weight_hh_l0").grad is not None
        ((5, 4), True)
    """

    def __init__(
        self, function: Callable[..., Any], parameters: Any = None, *, matmul: str | None = None,
        precision: str = FULL,
    ) -> None:  # fmt: skip
        super().__init__()
        if not callable(function):
            raise refused(
                "Batched", f"function is {shown(function)}",
                "a function, function(graph, params, *sentence)", "give the function itself",
            )  # fmt: skip
        self.function = function
        self._rounding: Rounding = {"matmul": matmul, "precision": precision}
        self.weights, self.params, self._links = share(parameters)
        if isinstance(parameters, Module | nn.Module):
            self.training = parameters.training

    def train(self, mode: bool = True) -> Self:
        """Turn dropout on (`mode=True`) or off, here and below, in a model of dynbatch too."""
        super().train(mode)
        if isinstance(self.params, Module):
            self.params.train(mode)
        return self

    def forward(self, *arguments: Any) -> Outputs:
        """One list of tensors, or a tuple of them: see the class."""
        if torch.compiler.is_compiling():
            _leave_uncompiled()
            return Batched.forward(self, *arguments)
        return self._run(*arguments)

    def _run(self, *arguments: Any) -> Outputs:
        sentences = sentences_of(arguments)
        if not sentences:
            return []
        tensors = follow(self._links, self.weights)
        batch = self._mini_batch(sentences, tensors)
        if batch.graph.grad:
            inputs = (*batch.inputs, *tensors)
            outputs = Differentiated.apply(batch, *inputs)
        else:
            outputs = batch.forward([False] * len(batch.inputs))
            batch.close()
        if batch.parts is None:
            return list(outputs)
        return tuple([list(outputs[part :: batch.parts]) for part in range(batch.parts)])

    def _mini_batch(
        self, sentences: list[tuple[Any, ...]], tensors: list[nn.Parameter]
    ) -> MiniBatch:
        inputs = [p for s in sentences for p in s if isinstance(p, Tensor)]
        floats = [*tensors, *[tensor for tensor in inputs if tensor.is_floating_point()]]
        device, dtype = require_alike(floats)
        return MiniBatch(
            _with_params(self.function, self.params),
            sentences,
            [link.parameter for link in self._links],
            device,
            dtype,
            # Drawn in training alone; a checkpoint of PyTorch that calls again restores its state.
            int(torch.randint(1 << 31, ())) if self.training else None,
            torch.is_grad_enabled() and any([tensor.requires_grad for tensor in floats]),
            self._rounding,
        )

    def extra_repr(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)


def _leave_uncompiled() -> None:
    """Break the graph of PyTorch's compiler here, and at each call of a `Batched` from now on.

    Not a decorator of `forward`: it would import the compiler, which takes seconds, for everybody.
    """
    reason = "dynbatch runs its own graph between the compiled parts of a model"
    Batched.forward = torch.compiler.disable(Batched._run, reason=reason)  # type: ignore[method-assign]


def _with_params(function: Callable[..., Any], params: Any) -> Callable[..., Any]:
    def build(graph: Any, *sentence: Any) -> Any:
        return function(graph, params, *sentence)

    return build
