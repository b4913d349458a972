"""Whether a backward makes any gradient that somebody can read."""

from __future__ import annotations

from dynbatch.batcher.planning.run_plan import Request
from dynbatch.batcher.planning.stages import StepGraph
from dynbatch.errors import NoGradientError


def require_gradients(request: Request, graph: StepGraph) -> None:
    """Raise `NoGradientError` unless one of `request.ends` leads to a parameter or to a kept node.

    A graph that reads no parameter is not asked.

    Args:
        graph: the steps of the run and of those before it.
    """
    if not request.ends:
        return
    blocks = {node._block for node in request.ends}
    steps = [*graph.past, *graph.new]
    makers = [step for step in steps if not blocks.isdisjoint(step.blocks)]
    if any([step.parameters or graph.needs_gradient(step) for step in makers]):
        return
    read = {p.uid: p for node in request.graph_nodes for p in node.all_parameters()}
    if not read:
        return  # a loss of constants, in a graph of them
    frozen = ""
    if all([parameter.frozen for parameter in read.values()]):
        frozen = "; every parameter that the graph reads is frozen"
    raise NoGradientError(
        f"backward: {request.ends[0].label()} depends on no parameter that is trained, and on no "
        f"kept node{frozen}.\n"
        "  rule: gradients are made for parameters, and for nodes that were kept\n"
        "  fix:  make the loss of what the parameters give: node.value and F.input in between\n"
        "        break the way; keep() a node before backward to get its gradient"
    )
