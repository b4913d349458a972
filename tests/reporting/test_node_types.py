"""`node_types()`: what it says of each type, and where it has it from."""

import sys
from collections import defaultdict

import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.batcher.steps.step_run import StepRun
from dynbatch.blocks.call import BlockCall
from dynbatch.kernels.runtime.dispatch import C_KERNELS, CUDA_KERNELS
from dynbatch.nodes.operation import Operation
from dynbatch.reporting.node_types import KERNELS, node_types
from tests.node_cases import CASES
from tests.nodes.test_contract import kinds_in

ALL = ("NumPy", "C", "CUDA")


def below(kind):
    return [each for own in kind.__subclasses__() for each in (own, *below(own))]


def is_ours(kind, types):
    """Whether a listed type is the package's: other tests have types of their own."""
    return kind.__module__.startswith("dynbatch.") and kind.__name__ in types


def test_every_type_that_runs_says_its_shapes_and_what_it_batches_with():
    types = node_types()
    ours = {
        kind.__name__: types[kind.__name__] for kind in below(Operation) if is_ours(kind, types)
    }
    assert [name for name, each in ours.items() if not (each.shape and each.batches_with)] == []
    assert [name for name, each in ours.items() if not each.computes] == []


def test_what_the_cases_of_nodes_run_is_listed():
    ran = {kind for case in CASES for kind in kinds_in(case) if ".testing." not in kind.__module__}
    listed = {*node_types(), "Call", "ResultPart"}  # handles of values that `RegionNode` computes
    assert {kind.__name__ for kind in ran if kind is not BlockCall} <= listed


def test_kernels_are_those_that_the_hooks_name():
    types = node_types()
    assert types["Softmax"].kernels == {"softmax.softmax": ALL, "softmax.softmax_backward": ALL}
    assert types["Tanh"].kernels == {
        "elementwise.apply": ALL,
        "elementwise.apply_backward": ALL,
    }
    assert types["CumSum"].kernels == {"cumulative.cumsum_segments": ("NumPy", "CUDA")}
    assert {"blas.matmul_rows", "arrays.sum_rows"} <= types["LinearMap"].kernels.keys()
    assert types["Concat"].kernels == types["Reshape"].kernels == {"move.run": ALL}


def test_every_type_of_ours_names_its_kernels_or_says_why_none_has_a_name():
    types = node_types()
    ours = [types[kind.__name__] for kind in below(Operation) if is_ours(kind, types)]
    assert len(ours) > 100
    assert [each.name for each in ours if not (each.kernels or each.other_kernels)] == []
    told = {each.name: each.other_kernels for each in ours if each.other_kernels}
    assert told.keys() == {"BlockCall", "BlockResult", "RegionNode", "ResumedScan", "Scan"}
    assert told["BlockResult"] == "none: it is a view of what the block left."
    assert str(types["Scan"]).splitlines()[-3].startswith("  kernels       generated for its cell")


class KernelsOfSteps:
    """The kernels that steps call themselves while they run forward, by their node types.

    A kernel that another one calls is that one's own affair.
    """

    def __init__(self):
        self.found = defaultdict(set)
        self._kernels = {kernel.__code__ for kernel in (C_KERNELS | CUDA_KERNELS).values()}

    def __enter__(self):
        sys.setprofile(self._called)
        return self.found

    def __exit__(self, *_):
        sys.setprofile(None)

    def _called(self, frame, event, _):
        if event != "call" or frame.f_code not in self._kernels:
            return
        caller = frame.f_back
        while caller and caller.f_code not in {*self._kernels, StepRun.forward.__code__}:
            caller = caller.f_back
        if caller and caller.f_code not in self._kernels:
            kernel = frame.f_locals["function"]
            label = f"{kernel.__module__.removeprefix(KERNELS)}.{kernel.__name__}"
            self.found[caller.f_locals["self"].node_type].add(label)


@pytest.mark.exhaustive
def test_every_kernel_that_a_step_calls_is_named_by_its_type(one_thread):
    with KernelsOfSteps() as found:
        for case in CASES:
            kinds_in(case)
    types = node_types()
    told = {kind: types[kind.__name__] for kind in found if kind.__name__ in types}
    assert len(told) > 80
    brings_rows_together = {"move.run"}
    assert {
        kind.__name__: wrong
        for kind, each in told.items()
        if (wrong := found[kind] - each.kernels.keys() - brings_rows_together)
        and not each.other_kernels
    } == {}


def test_bases_stand_ins_and_single_blocks_are_not_listed():
    @db.block
    def halved(x):
        return F.tanh(x) * 0.5

    with db.Graph() as graph:
        halved(F.input(graph, [[1.0]])).value  # noqa: B018
    types = node_types()
    assert "BlockCall" in types
    assert types.keys().isdisjoint(
        {"halved", "Unary", "Binary", "Structural", "Placeholder", "Probe", "BlockArgument"}
    )


def test_a_type_of_the_users_own_is_listed_as_it_describes_itself():
    class OwnSquare(db.Operation):
        """y = x ⊙ x.

        Shape:  any.
        """

        def infer_shape(self, x):
            return x

    told = db.node_types()["OwnSquare"]
    assert told == db.NodeType("OwnSquare", "y = x ⊙ x.", "any.", "", {})
    assert str(told) == "OwnSquare\n  y = x ⊙ x.\n  shape         any."


def test_a_type_is_listed_with_the_cuda_kernels_of_its_text():
    class Tripled(db.Operation):
        """y = 3 x."""

        back = db.CudaKernel('extern "C" __global__ void tripled_backward(REAL* dx) {}')

        @classmethod
        def forward_batch(cls, batch, y, x):
            start(batch, y)

        @classmethod
        def backward_batch(cls, batch, dy, dx):
            batch.launch(cls.back, 1, 1, (dx,))

    told = db.node_types()["Tripled"]
    assert told.kernels == {"tripled": ("CUDA",), "tripled_backward": ("CUDA",)}
    assert str(told).endswith("  kernels       tripled, tripled_backward (CUDA)")


TRIPLED = db.CudaKernel('extern "C" __global__ void tripled(REAL* y) {}')


def start(batch, y):
    batch.launch(TRIPLED, 1, 1, (y.flat,))


def test_a_name_of_ours_stays_ours_when_a_program_has_a_type_called_so():
    class Softmax(db.Operation):
        """y = x."""

    types = node_types()
    assert types["Softmax"].kernels == {"softmax.softmax": ALL, "softmax.softmax_backward": ALL}
    other = types[f"{__name__}.{Softmax.__qualname__}"]
    assert (other.name.rpartition(".")[2], other.computes) == ("Softmax", "y = x.")


def test_a_type_is_told_in_eighty_columns():
    for each in node_types().values():
        if "<locals>" in each.name:  # a test's, of a name that is taken
            continue
        assert max(map(len, str(each).splitlines())) <= 80
    assert str(node_types()["MatMul"]).splitlines()[-1] == (
        "  kernels       blas.matmul_segments (NumPy, C, CUDA)"
    )
