import numpy as np
import pytest

from dynbatch.backend import spec_of
from dynbatch.kernels.attention import gated_delta_rule as kernels
from dynbatch.kernels.attention.gated_delta_rule import DeltaGradients, DeltaInputs
from dynbatch.kernels.cuda.attention import gated_delta_rule as launched
from tests.cuda import fake_cupy
from tests.kernels.cuda.attention.test_dot_product import room
from tests.kernels.cuda.compare import Values, assert_versions_agree, launches
from tests.kernels.cuda.test_segment import normal

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
LENGTHS = [3, 0, 9, 1, 4, 5]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Several chunks, and several heads for a block."""
    monkeypatch.setattr(kernels, "CHUNK", 4)
    monkeypatch.setattr(launched, "MOST_BLOCKS", 5)


def exercise(kernels):
    """Three chunks of a head of one sentence, with two heads for a block."""
    tokens, heads, d, e, chunk = 9, 2, 5, 3, 4
    q, k, dq, dk = [fake_cupy.zeros((tokens, heads * d), np.float32) for _ in range(4)]
    v, out, errors, dout, dv = [fake_cupy.zeros((tokens, heads * e), np.float32) for _ in range(5)]
    log_a, b, dlog_a, db = [fake_cupy.zeros((tokens, heads), np.float32) for _ in range(4)]
    states, scratch = fake_cupy.zeros((4, d * e), np.float32), fake_cupy.zeros(500, np.float32)
    offsets, counts = [fake_cupy.asarray(np.array(x)) for x in ([0, tokens], [0])]
    sizes = (500, 1, heads, d, e, chunk)
    args = (q, k, v, log_a, b, offsets, counts, out, errors, states, scratch, *sizes)
    kernels.launch("gated_delta_rule", (1,), (64,), args)
    args = (q, k, v, log_a, b, offsets, counts, errors, states, dout, dq, dk, dv, dlog_a, db,
            scratch, *sizes)  # fmt: skip
    kernels.launch("gated_delta_rule_backward", (1,), (64,), args)


def problem(dtype, has_b, lengths=LENGTHS):
    tokens, heads = sum(lengths), 2
    q, k, v = [normal(dtype, tokens, heads * n, seed=n) for n in (5, 4, 3)]
    q, k = normal(dtype, tokens, heads * 5, seed=1), normal(dtype, tokens, heads * 5, seed=2)
    log_a, b = normal(dtype, tokens, heads, seed=4), normal(dtype, tokens, heads, seed=5)
    log_a.array[...], k.array[...] = -np.abs(log_a.array), k.array / 3
    b.array[...] = np.abs(np.tanh(b.array))
    offsets = np.cumsum([0, *lengths])
    return DeltaInputs(q, k, v, log_a, b if has_b else None, offsets)


def sizes_of(x):
    return DeltaInputs(*[each.array if isinstance(each, Values) else each for each in x]).sizes


def forward(x, out, errors, states):
    """The kernel, with as much scratch as it asks for."""
    size = kernels.workspace(spec_of(x.q), x.sizes, errors is not None)
    kernels.gated_delta_rule(x, out, errors, states, room(x.q, size))


def backward(x, errors, states, dout, wanted):
    size = kernels.workspace_backward(spec_of(x.q), x.sizes)
    kernels.gated_delta_rule_backward(x, errors, states, dout, wanted, room(x.q, size))


@pytest.mark.parametrize("has_b", [True, False], ids=["b", "no b"])
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not kept"])
def test_forward_and_backward(cupy, dtype, has_b, keeps):
    x = problem(dtype, has_b)
    out, sizes = normal(dtype, *x.v.array.shape, seed=6), sizes_of(x)
    errors = Values(np.zeros_like(out.array)) if has_b and keeps else None
    number = sizes.heads * sum(kernels.kept_states(spec_of(fake_cupy.zeros(0, dtype)), sizes))
    states = normal(dtype, number, 15, seed=7) if keeps else None
    with launches(1):
        made = assert_versions_agree(forward, x, out, errors, states, **TOLERANCE)
    if not keeps:
        return
    count = 5 if has_b else 4
    left = [Values(array) for array in made[count + 1 :]]
    errors, states = left if has_b else (None, *left)
    wanted = DeltaGradients(*[None if each is None else Values(np.zeros_like(each.array))
                              for each in x[:5]])  # fmt: skip
    dout = normal(dtype, *out.array.shape, seed=8)
    with launches(1):
        assert_versions_agree(backward, x, errors, states, dout, wanted, **TOLERANCE)
    with launches(1):
        wanted = wanted._replace(q=None, k=None, v=None, b=None)
        assert_versions_agree(backward, x, errors, states, dout, wanted, **TOLERANCE)


def test_no_tokens(cupy, dtype):
    x = problem(dtype, True, [0, 0])
    with launches(0):
        assert_versions_agree(forward, x, normal(dtype, 0, 6), None, None)
