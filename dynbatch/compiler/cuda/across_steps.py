"""Prints the products that end a step of backward with the group that begins the next.

A step of an LSTM back is a group, the gradients of its gates, and a product, what they give to the
state that the step found. The step that runs next reads this gradient in its group. So one kernel
does the product of the step behind, t + 1, and the group of step t, each with its own rows: an
LSTM's backward is a launch a step. The gradient is not written where nothing else reads it.
"""

from __future__ import annotations

from dynbatch.compiler.cuda.fused_product import FusedProduct
from dynbatch.compiler.cuda.loop import Loop
from dynbatch.compiler.cuda.order import DevicePass
from dynbatch.compiler.ir import Op, OpCode, Value
from dynbatch.compiler.lanes import KernelGroup


class ProductAcrossSteps(FusedProduct):
    """The text of one kernel for the last products of step t + 1 and the first group of step t.

    What step t + 1 found is what step t left: the arrays have changed places in between. Rows of
    sentences that end at step t have what was given, which no step has written over.
    """

    rows = "n1"

    def __init__(self, loop: Loop, name: str, step: DevicePass) -> None:
        self._left = {
            id(value): left
            for value, left in zip(
                step.following, loop.backward_program.left_gradients, strict=True
            )
        }
        super().__init__(loop, name, step, step.products(step.runs[-1]), 0, 0)

    def _value(self, op: Op) -> Value:
        return self._left[id(op.output)]

    def _guard(self, op: Op) -> str:
        return ""  # there is a step before t + 1

    def _sum(self, segment: Value, stored: bool = False) -> str:
        """Columns of the gradient; a product that is added to something lies where this does."""
        op, key = self._products[id(segment.base)], segment.key
        total = f"m{self._pieces.numbers[key]}" if key in self._pieces.heads else "(REAL)0"
        there = f"{self.arrays.address(segment)}[j]"
        if op.inputs[1:]:
            return f"(row < n1 ? {total} : (REAL)0) + {there}"
        return total if stored else f"(row < n1 ? {total} : {there})"

    def _store(self, name: str, segment: Value) -> str:
        line = super()._store(name, segment)
        return f"if (row < n1) {line}" if id(segment.base) in self._products else line

    def _needed(self, op: Op) -> str:
        return "first_row < n1"

    def _factor(self, op: Op) -> str:
        return f"const long long s = s1; {super()._factor(op)}"

    def _begin(self) -> list[str]:
        return [
            *super()._begin(),
            "const int s1 = steps[3 * t + 3], n1 = steps[3 * t + 4];  // of step t + 1",
        ]


def product_across_steps(loop: Loop, step: DevicePass) -> ProductAcrossSteps | None:
    """The kernel for a pass that begins with a group and ends with gradients of states, or None."""
    runs, first = step.runs, step.items[:1]
    if not runs or not isinstance(first[0], KernelGroup) or runs[-1].end < len(step.items) - 1:
        return None
    products = step.products(runs[-1])
    carried = {id(value) for value in step.following}
    are_packed = all([loop.places.buffer_of(op.inputs[0].base)[0].packed for op in products])
    if runs[-1].group is not None or not are_packed:
        return None
    if any([op.opcode is OpCode.LINEAR or id(op.output) not in carried for op in products]):
        return None
    kernel = ProductAcrossSteps(loop, "backward_across", step)
    return kernel if kernel.fits and kernel.tile_lanes else None
