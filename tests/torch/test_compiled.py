"""`torch.compile` around a `Batched`: its parts are compiled, dynbatch's graph runs as it is."""

import copy
import subprocess
import sys

import pytest

from dynbatch import models

torch = pytest.importorskip("torch")
nn = torch.nn

from dynbatch.torch import Batched  # noqa: E402

# The compiler of PyTorch 2.13 asks tensors between two of its graphs for their gradients.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Tagger(nn.Module):
    """A layer of PyTorch, an LSTM of dynbatch, and a layer of PyTorch."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(3, 4)
        self.lstm = Batched(lambda graph, lstm, x: lstm(x), models.LSTM(4, 5, rng=0))
        self.after = nn.Linear(5, 2)

    def forward(self, x, lengths):
        xs = self.before(x).tanh().split(lengths)
        return self.after(torch.cat(self.lstm(list(xs)))).sin()


@pytest.fixture
def compiler():
    from torch._dynamo.testing import CompileCounter  # which takes a second

    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


LENGTHS = ([2, 5, 3], [1, 6, 3], [4, 4, 2], [8, 1, 1], [3, 3, 4], [2, 2, 6])


def test_values_and_gradients_are_those_of_the_model_as_it_is(compiler):
    torch.manual_seed(0)
    model = Tagger()
    compiled_model = copy.deepcopy(model)
    compiled = torch.compile(compiled_model, backend=compiler)
    for lengths in LENGTHS:
        x = torch.randn(10, 3)
        found, expected = compiled(x, lengths), model(x, lengths)
        assert torch.equal(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    for one, other in zip(gradients(compiled_model), gradients(model), strict=True):
        assert torch.equal(one, other)


def test_the_parts_around_it_are_compiled_once_for_fixed_and_once_for_any_lengths(compiler):
    compiled = torch.compile(Tagger(), backend=compiler)
    counts = []
    for lengths in ([2, 5, 3], [3, 2, 5], [5, 3, 2], [2, 3, 5]):
        compiled(torch.randn(10, 3), lengths)
        counts.append(compiler.frame_count)
    assert counts == [2, 4, 4, 4]  # before it and after it


def test_a_batched_alone_and_a_function_that_calls_one_run(compiler):
    batched = Tagger().lstm
    xs = [torch.randn(length, 4) for length in (2, 3)]
    expected = batched(xs)
    for call in (batched, lambda xs: batched(xs)):
        found = torch.compile(call, backend=compiler)(xs)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert compiler.frame_count == 0


def test_a_graph_that_must_not_break_is_refused_with_the_reason(compiler):
    torch.compile(Tagger().lstm, backend=compiler)([torch.ones(2, 4)])
    whole = torch.compile(Tagger(), backend=compiler, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="dynbatch runs its own graph between"):
        whole(torch.randn(10, 3), LENGTHS[0])


def test_who_does_not_compile_does_not_import_the_compiler():
    program = (
        "import sys, torch; from dynbatch import models; from dynbatch.torch import Batched;"
        "batched = Batched(lambda graph, lstm, x: lstm(x), models.LSTM(2, 2));"
        "batched([torch.ones(3, 2)])[0].sum().backward();"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
