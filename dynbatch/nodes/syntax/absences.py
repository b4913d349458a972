"""Names that tensors have and nodes lack, each with what to write instead."""

from __future__ import annotations

from dynbatch.absent import Absent, HasOperators, HidesAbsent, refuse
from dynbatch.nodes.syntax.other_names import OTHER_NAMES

VALUES_STAY = "values never change: x = x + y makes a node, and the name stands for it then"
DEVICE = 'db.Graph(device="cuda") has its nodes there, inputs too; node.value is on the host'
FEWER_BITS = 'db.Graph(precision="bfloat16") rounds all values, and keeps them in half the memory'
DTYPE = 'db.Graph(dtype="float64") sets it for all nodes; node.value.astype(...) converts an array'


class Absences(HidesAbsent, HasOperators):
    """Base of `Node`: names that tensors have and nodes lack."""

    __slots__ = ()

    int = Absent("node.value.astype(int), outside the network")
    long = Absent("node.value.astype(int), outside the network")
    bool = Absent("node.value.astype(bool), outside the network")
    data = Absent("node.value is a copy of the value")
    detach_ = Absent("nothing changes a node; F.detach(node) has no gradient")
    grad = Absent("x.keep() before graph.backward(loss), then x.gradient")
    retain_grad = Absent("x.keep() before graph.backward(loss), then x.gradient")
    requires_grad = Absent(
        "every node has a gradient where it matters; parameter.frozen = True stops a parameter's"
    )
    requires_grad_ = Absent(
        "every node has a gradient where it matters: x.keep(), then x.gradient after backward"
    )
    argsort = Absent("F.topk(x, len(x), dim) has the ids of all in falling order")
    device = Absent("graph.device: all nodes are where their graph is")
    expand_as = Absent("F.expand(x, y.shape); operators repeat a vector by themselves")
    flip = Absent("F.reverse(x) has the rows of a matrix in reverse")
    indices = Absent("F.argmax(x, dim) gives where the largest elements are")
    repeat = Absent("F.repeat(x, times) repeats the rows")
    sort = Absent("F.topk(x, len(x), dim) has all in falling order")
    square = Absent("x * x, or x**2")
    values = Absent("F.max(x, dim) gives the values alone, F.topk(x, k, dim) values and ids")
    view_as = Absent("F.reshape(x, y.shape)")


refuse(Absences, DEVICE, "cpu", "cuda", "to")
refuse(Absences, DTYPE, "double", "float", "astype")
refuse(Absences, FEWER_BITS, "bfloat16", "half")
refuse(Absences, VALUES_STAY, "add_", "copy_", "fill_", "masked_fill_", "mul_", "zero_")
for _name in ("argmin", "gather", "index_select", "masked_fill", "norm", "prod"):
    refuse(Absences, OTHER_NAMES[_name], _name)
