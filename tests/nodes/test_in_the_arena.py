"""Memory of a step beside its arena does not grow with tokens times features, nor with pairs."""

import tracemalloc

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.kernels import blas, segment
from dynbatch.kernels.attention import additive as additive_attention
from dynbatch.kernels.attention import blocks as attention
from dynbatch.kernels.losses import crf
from dynbatch.nodes.losses.cross_entropy import stored_logits
from dynbatch.nodes.losses.elementwise import ElementwiseLoss
from tests.cuda import devices
from tests.cuda.fake_cupy import array as fake_array
from tests.marks import exhaustive

pytestmark = pytest.mark.slow

LENGTHS = [28 + 4 * (k % 5) for k in range(30)]
NARROW, WIDE = 16, 144


@pytest.fixture(autouse=True)
def few_elements(monkeypatch, one_thread):
    """Blocks are small beside the arrays of a test."""
    for module, name in (
        (segment, "BLOCK"), (crf, "BLOCK_ELEMENTS"),
        (additive_attention, "BLOCK_ELEMENTS"), (attention, "BLOCK_ELEMENTS"),
        (blas, "ADDED_SLICE"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1 << 12)


class Given:
    """The arguments of a case: inputs of one sentence, and parameters by shape."""

    def __init__(self, graph, rows, width, parameters, generator):
        self.graph, self.rows, self.width = graph, rows, width
        self._parameters, self.generator = parameters, generator

    def x(self, rows=None, width=None):
        shape = (self.rows if rows is None else rows, width or self.width)
        return F.input(self.graph, 0.1 + self.generator.random(shape)).keep()

    def vector(self):
        return F.input(self.graph, self.generator.random(self.width)).keep()

    def ids(self, most):
        return self.generator.integers(0, most, self.rows)

    def parameter(self, *shape):
        if shape not in self._parameters:
            parameter = db.Parameter(0.1 * np.ones(shape, np.float32))
            self._parameters[shape] = parameter.to(self.graph.device)
        return self._parameters[shape]


def unary(function, **options):
    return lambda g: function(g.x(), **options)


def attending(**options):
    def build(g):
        x = g.x()
        return F.attention(x, x, x, **options)

    return build


def whole_logits(g):
    with stored_logits():
        return F.cross_entropy(F.linear(g.x(), g.parameter(g.width, g.width)), g.ids(g.width))


def chain(g):
    tags = g.width // 2
    return g.x(width=tags), g.parameter(tags, tags), g.parameter(tags), g.parameter(tags)


def crf_loss(g):
    emissions, *parameters = chain(g)
    return F.crf(emissions, g.ids(g.width // 2), *parameters)


def semi_crf(g):
    tags = g.width // 4
    parameters = g.parameter(tags, tags), g.parameter(tags), g.parameter(tags)
    return F.semi_crf(g.x(), [(2, t % tags) for t in range(g.rows // 2)], 4, *parameters)


def scanning(attend):
    """A scan whose steps attend to a memory of as many features."""

    @db.cell
    def step(x, h, p, memory):
        h = F.tanh(x + F.linear(attend(F.linear(h, p[1]), memory, p), p[0]))
        return h, h

    def build(g):
        parameters = [g.parameter(4, g.width), g.parameter(g.width, 4), g.parameter(g.width)]
        return db.scan(step, g.x(width=4), 4, parameters, g.x(), return_state=False)

    return build


SCANS = {
    "attention in a scan": scanning(lambda q, memory, p: F.attention(q, memory)),
    "additive_attention in a scan": scanning(
        lambda q, memory, p: F.additive_attention(q, memory, None, p[2])
    ),
}

CASES = {
    **{
        kind.__name__: unary(kind)
        for kind in (
            F.tanh, F.sigmoid, F.relu, F.exp, F.log, F.sqrt, F.abs, F.gelu, F.silu, F.softplus,
            F.elu, F.leaky_relu, F.negative, F.softmax, F.log_softmax, F.layer_norm, F.rms_norm,
            F.dropout, F.reverse,
        )
    },
    "gelu, tanh": unary(F.gelu, approximate="tanh"),
    "clip": unary(F.clip, low=0.2, high=0.8),
    "power": lambda g: g.x() ** 2.0,
    "sum of two": lambda g: g.x() + g.x(),
    "product": lambda g: g.x() * g.x(),
    "quotient": lambda g: g.x() / g.x(),
    "scale": lambda g: g.x() * float(g.rows),
    "shift": lambda g: g.x() + float(g.rows),
    "a vector for all tokens": lambda g: g.x() + g.vector(),
    "a column for all features": lambda g: g.x() + g.x(width=1),
    **{f"{kind.__name__}, tokens": unary(kind, dim=0)
       for kind in (F.softmax, F.log_softmax, F.sum, F.mean, F.max, F.min, F.logsumexp)},
    **{f"{kind.__name__}, features": unary(kind, dim=-1)
       for kind in (F.sum, F.mean, F.max, F.min, F.logsumexp)},
    "argmax": lambda g: F.argmax(g.x(), dim=0) * F.sum(g.x(), dim=0),
    "swiglu": unary(F.swiglu),
    "geglu of two": lambda g: F.geglu(g.x(), g.x()),
    "rotary": unary(F.rotary, heads=4, layout="interleaved"),
    "layer_norm of two": lambda g: F.layer_norm(g.x(), *[g.parameter(g.width)] * 2),
    "linear": lambda g: F.linear(g.x(), g.parameter(8, g.width)),
    "matmul": lambda g: F.matmul(g.x(width=8), g.x(rows=8)),
    "cross_entropy": lambda g: F.cross_entropy(
        F.linear(g.x(), g.parameter(50, g.width)), g.ids(50)
    ),
    "cross_entropy of whole logits": whole_logits,
    **{kind.__name__: lambda g, kind=kind: kind(g.x(), g.x(), scale=0.5)
       for kind in ElementwiseLoss.__subclasses__()},
    "nll_loss": lambda g: F.nll_loss(F.log_softmax(g.x()), g.ids(g.width)),
    "pointer_loss": lambda g: F.pointer_loss(g.x(), g.x(), g.ids(g.rows)),
    "crf": crf_loss,
    "ctc_loss": lambda g: F.ctc_loss(F.log_softmax(g.x()), [1, 2, 2, 3]),
    "semi_crf": semi_crf,
    "viterbi": lambda g: F.viterbi(*chain(g)) * g.x(width=1),
    "attention": attending(),
    "attention, heads": attending(heads=4),
    "attention, causal": attending(heads=4, causal=True),
    "attention, window": attending(heads=4, window=5),
    "attention, cross": lambda g: F.attention(g.x(), g.x(rows=2 * g.rows)),
    "attention, grouped queries": lambda g: F.attention(
        g.x(), g.x(width=g.width // 2), heads=4, kv_heads=2
    ),
    "attention, bias": lambda g: F.attention(
        g.x(), g.x(), heads=4, bias=F.t5_bias(g.parameter(16, 4))
    ),
    "attention, dropout": attending(heads=4, dropout=0.3),
    "attention, one query": lambda g: F.attention(g.vector(), g.x()),
    "general_attention": lambda g: F.general_attention(
        g.x(width=8), g.x(), None, g.parameter(g.width, 8)
    ),
    "additive_attention": lambda g: F.additive_attention(
        g.x(rows=5), g.x(), g.x(), g.parameter(g.width)
    ),
    "additive_attention, one query": lambda g: F.additive_attention(
        g.vector(), g.x(), g.x(), g.parameter(g.width)
    ),
    "lookup": lambda g: F.lookup(g.graph, g.parameter(20, g.width), g.ids(20)),
    "gather_rows": lambda g: F.gather_rows(g.x(), g.ids(g.rows)),
    "segment_mean": lambda g: F.segment_mean(g.x(), [3, g.rows - 3]),
    "repeat": lambda g: F.repeat(g.x(), 2),
    "slice": lambda g: g.x()[3:-3],
    "concat": lambda g: F.concat([g.x(), g.x()]),
    "reshape": lambda g: F.reshape(g.x(), (2 * g.rows, g.width // 2)),
    "windows": lambda g: F.windows(g.x(), 3, padding=1),
    "max_pool": lambda g: F.max_pool(g.x(), 3, 1),
    "mean_pool": lambda g: F.mean_pool(g.x(), 3, 1),
}  # fmt: skip


def beside_the_arena(build, width, lengths=LENGTHS):
    """The most bytes that NumPy held during a backward, beside an arena that was there before."""
    pool, parameters = db.memory.Pool(), {}
    for warm in (True, False):
        for parameter in parameters.values():
            parameter.zero_grad()
        generator = np.random.default_rng(0)
        with db.Graph(pool=pool) as graph:
            outputs = [build(Given(graph, n, width, parameters, generator)) for n in lengths]
            loss = F.mean([F.sum(y) if y.shape else y for y in outputs])
            if warm:
                graph.backward(loss)
                continue
            tracemalloc.start()
            try:
                graph.backward(loss)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    raise AssertionError


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_features_cost_nothing_beside_the_arena(build):
    array = 4 * sum(LENGTHS) * (WIDE - NARROW)
    more = beside_the_arena(build, WIDE) - beside_the_arena(build, NARROW)
    assert more < 0.15 * array


def beside_the_arena_of_a_gpu(build, width):
    """The bytes of all arrays of CuPy that a backward makes, but for parameters' gradients."""
    parameters, sizes, generator = {}, [], np.random.default_rng(0)
    alloc = fake_array.alloc
    with devices.device("shuffled"), db.Graph("cuda") as graph:
        made = [build(Given(graph, n, width, parameters, generator)) for n in LENGTHS]
        loss = F.mean([F.sum(y) if y.shape else y for y in made])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fake_array, "alloc", lambda size: sizes.append(size) or alloc(size))
            graph.backward(loss)
    gradients = [p.grad.nbytes for p in parameters.values() if p.grad is not None]
    return sum(sizes) - sum(gradients)


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*SCANS, *map(exhaustive, CASES)])
def test_features_cost_nothing_beside_the_arena_of_a_gpu(name):
    build = SCANS.get(name) or CASES[name]
    array = 4 * sum(LENGTHS) * (WIDE - NARROW)
    more = beside_the_arena_of_a_gpu(build, WIDE) - beside_the_arena_of_a_gpu(build, NARROW)
    assert more < 0.15 * array


@pytest.mark.parametrize("name", [name for name in CASES if "attention" in name or "point" in name])
def test_pairs_of_tokens_cost_nothing_beside_the_arena(name):
    few, many = [50] * 3, [170] * 3
    pairs = 4 * 3 * (170**2 - 50**2)
    more = beside_the_arena(CASES[name], 8, many) - beside_the_arena(CASES[name], 8, few)
    assert more < 0.15 * pairs


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 7}], ids=str)
def test_attention_keeps_a_number_a_query_and_head(options):
    """The arena at its peak, of T tokens, D features and H heads: eight matrices (T, D) (the input
    and its gradient, values and theirs, and three gradients before they are added), log-sums (T, H)
    and two blocks of scores, beside the loss and its gradient. In C a block has 32 queries of one
    head. One matrix of scores would be H T², 16 times all of that."""
    heads, width = 4, 16
    peaks = {}
    for tokens in (512, 1024):
        with db.Graph() as graph:
            x = F.input(graph, np.random.default_rng(0).random((tokens, width))).keep()
            graph.backward(F.sum(F.attention(x, x, x, heads=heads, **options)))
        peaks[tokens] = graph.peak_bytes
        blocks = 4 * attention_block(tokens)
        assert graph.peak_bytes <= 4 * (tokens * (8 * width + heads) + blocks + 2)
    assert peaks[1024] - 2 * peaks[512] <= 0
    assert peaks[1024] < 4 * heads * 1024**2 / 16


def attention_block(tokens):
    """Elements of a block of scores: a row of each head at least."""
    return max(attention.BLOCK_ELEMENTS, 4 * tokens)
