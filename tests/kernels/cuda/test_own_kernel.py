"""Kernels of the user's own: what they compute, what starts them, and what their errors say."""

import inspect

import numpy as np
import pytest

import dynbatch as db
from dynbatch import nodes as F
from dynbatch.errors import ArgumentError, BackendError, DtypeError, ShapeError
from dynbatch.kernels.cuda.runtime.queue import queue
from tests.cuda import devices, nvrtc

TEXT = r"""
extern "C" __global__ void average(
    const REAL* x,       // (N, width), packed rows
    const int* offsets, const REAL* decay /* (sentences,) */, int width, REAL* y) {
    const int k = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const REAL a = decay[k];
    REAL state = 0;
    for (long long t = offsets[k]; t < offsets[k + 1]; ++t) {
        state = a * state + (1 - a) * x[t * width + column];
        y[t * width + column] = state;
    }
}
extern "C" __global__ void average_backward(
    const REAL* dy, const int* offsets, const REAL* decay, int width, REAL* dx) {
    const int k = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const REAL a = decay[k];
    REAL g = 0;
    for (long long t = offsets[k + 1] - 1; t >= offsets[k]; --t) {
        g = dy[t * width + column] + a * g;
        dx[t * width + column] = (1 - a) * g;
    }
}
"""
AVERAGE = db.CudaKernel(TEXT, "average")
AVERAGE_BACKWARD = db.CudaKernel(TEXT, "average_backward")


class Average(db.Operation):
    """y_t = a y_{t-1} + (1 - a) x_t, by a kernel that waits in the queue."""

    __slots__ = ("decay",)
    names_kernels = True

    def infer_shape(self, x):
        self.require(len(x) == 2, f"x has shape {x}", "one row for each token", "F.unsqueeze it")
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        if batch.device.is_cuda:
            cls.launch(batch, AVERAGE, x, y)
            return
        for k, a in enumerate(batch.column("decay")):
            state = 0
            for t, row in enumerate(x[k]):
                y[k][t] = state = a * state + (1 - a) * row

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        if batch.device.is_cuda:
            cls.launch(batch, AVERAGE_BACKWARD, dy, dx)
            return
        for k, a in enumerate(batch.column("decay")):
            g = 0
            for t in reversed(range(dy.lengths[k])):
                g = dy[k][t] + a * g
                dx[k][t] = (1 - a) * g

    @classmethod
    def launch(cls, batch, kernel, source, target):
        width = source.values.shape[1]
        args = source.values, source.offsets, batch.array("decay"), width, target.values
        batch.launch(kernel, (len(source), -(-width // 32)), 32, args)


class AtOnce(Average):
    """Average, for which everything queued before is started first."""

    __slots__ = ()


class InALoop(Average):
    """Average, with a launch for each sentence."""

    __slots__ = ()
    names_kernels = True

    @classmethod
    def launch(cls, batch, kernel, source, target):
        width = source.values.shape[1]
        for k, a in enumerate(batch.array("decay")):
            args = source[k], np.array([0, source.lengths[k]]), np.array([a]), width, target[k]
            batch.launch(kernel, (1, -(-width // 32)), 32, args)


KINDS = [Average, AtOnce, InALoop]


def sentences(lengths=(3, 0, 7, 1), width=40):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, width)), 1 / (n + 2)) for n in lengths]


def averaged(kind, device, dtype="float64", **settings):
    """Values and gradients of a mini-batch, between functions of ours; launches and uploads."""
    with db.Graph(device, dtype, **settings) as graph:
        xs = [F.input(graph, x).keep() for x, _ in sentences()]
        ys = [
            kind(kind(F.tanh(x), decay=a), decay=0.5).keep()
            for x, (_, a) in zip(xs, sentences(), strict=True)
        ]
        graph.backward(F.sum([F.sum(F.tanh(y)) for y in ys]))
        counts = graph.statistics.launches, graph.statistics.uploads
        return [*[y.value for y in ys], *[x.gradient for x in xs]], counts


# Numbers ------------------------------------------------------------------------------------------


def test_the_numpy_rule_is_right():
    db.testing.check_gradient(lambda graph, x: Average(x, decay=0.7), shapes=[(5, 3)])


@pytest.mark.parametrize("way", devices.ways())
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_gives_the_numbers_of_the_numpy_rule(way, kind):
    with devices.device(way):
        db.testing.check_device(lambda graph, x, a: kind(x, decay=a), sentences(), device="cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_real_is_float_in_a_graph_of_float32(cuda, kind):
    for dtype, error in (("float32", 1e-5), ("float64", 1e-12)):
        expected, _ = averaged(kind, "cpu", dtype)
        found, _ = averaged(kind, "cuda", dtype, check=True)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, rtol=error, atol=error)


def test_check_finds_a_kernel_that_differs_from_its_rule(cuda):
    wrong = db.CudaKernel(TEXT.replace("REAL state = 0", "REAL state = 1"), "average")

    class Wrong(Average):
        __slots__ = ()
        names_kernels = True

        @classmethod
        def launch(cls, batch, kernel, source, target):
            super().launch(batch, wrong if kernel is AVERAGE else kernel, source, target)

    with pytest.raises(db.errors.CheckError, match=r"Wrong #\d+.*\n.*") as caught:
        averaged(Wrong, "cuda", check=True)
    assert "launched: kernel average" in str(caught.value)


def test_a_type_with_a_kernel_runs_in_a_cell(cuda):
    class Doubled(db.Operation):
        __slots__ = ()
        rowwise = names_kernels = True
        kernel = db.CudaKernel(
            'extern "C" __global__ void doubled(const REAL* x, REAL* y, long long n) {'
            "    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;"
            "    if (i < n) y[i] = 2 * x[i]; }"
        )

        def infer_shape(self, x):
            return x

        @classmethod
        def twice(cls, batch, source, target):
            size = source.flat.size
            if not batch.device.is_cuda:
                target.flat[:] = 2 * source.flat
            else:
                batch.launch(cls.kernel, -(-size // 64), 64, (source.flat, target.flat, size))

        @classmethod
        def forward_batch(cls, batch, y, x):
            cls.twice(batch, x, y)

        @classmethod
        def backward_batch(cls, batch, dy, dx):
            cls.twice(batch, dy, dx)

    @db.cell
    def step(x, h, params):
        h = F.tanh(Doubled(h) + x)
        return h, h

    examples = [x for x, _ in sentences((3, 1, 6), width=5)]

    def last(graph, x):
        return db.scan(step, x, init=F.constant(graph, np.full(5, 0.1)))[0]

    db.testing.check_device(last, examples, device="cuda")


COLUMNS = r"""
extern "C" __global__ void scaled(const REAL* x, const REAL* w, int rows, int width, REAL* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * width) y[i] = w[i % width] * x[i];
}
extern "C" __global__ void summed(const REAL* x, const REAL* dy, int rows, int width, REAL* dw) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    REAL sum = 0;
    for (int t = 0; t < rows; ++t) sum += x[t * width + column] * dy[t * width + column];
    dw[column] = sum;
}
"""
SCALED, SUMMED = db.CudaKernel(COLUMNS, "scaled"), db.CudaKernel(COLUMNS, "summed")


class Scaled(db.Operation):
    """y = w ⊙ x, whose kernel writes the gradient of w where it is planned."""

    __slots__ = ("weight",)
    static = ("weight",)
    retains = db.Retain(inputs=True)
    names_kernels = True

    def infer_shape(self, x):
        return x

    @classmethod
    def scale(cls, batch, x, y):
        w, (rows, width) = batch.first.weight.value, x.values.shape
        if not batch.device.is_cuda:
            np.multiply(x.values, w, out=y.values)
        else:
            args = x.values, w, rows, width, y.values
            batch.launch(SCALED, -(-rows * width // 64), 64, args)

    @classmethod
    def forward_batch(cls, batch, y, x):
        cls.scale(batch, x, y)

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        x, dw = batch.input(0).values, batch.parameter_gradients().buffer(batch.first.weight)
        if not batch.device.is_cuda:
            np.sum(x * dy.values, axis=0, out=dw)
        else:
            batch.launch(SUMMED, -(-x.shape[1] // 64), 64, (x, dy.values, *x.shape, dw))
        if dx is not None:
            cls.scale(batch, dy, dx)


@pytest.mark.parametrize("way", devices.ways())
def test_a_kernel_writes_the_gradient_of_a_parameter(way):
    weight = db.Parameter(np.random.default_rng(1).normal(size=40))
    examples = [x for x, _ in sentences()]
    build = lambda graph, x: Scaled(F.tanh(Scaled(x, weight=weight)), weight=weight)  # noqa: E731
    db.testing.check_gradient(build, inputs=examples[:1], parameters=[weight])
    with devices.device(way):
        db.testing.check_device(build, examples, parameters=[weight], device="cuda")


# Launches -----------------------------------------------------------------------------------------


def counted(kind, count):
    with db.Graph("cuda", grad=False) as graph:
        for x, a in sentences(range(1, count + 1)):
            kind(F.input(graph, x), decay=a)
        graph.forward()
        return graph.statistics.launches, [row.launches for row in graph._executor.rows()]


def test_with_offsets_the_sentences_are_one_launch_and_in_a_loop_one_each(cuda):
    (few, rows_few), (many, rows_many) = [counted(Average, count) for count in (2, 20)]
    assert few == many and rows_few == rows_many
    (few, _), (many, rows_looped) = [counted(InALoop, count) for count in (2, 20)]
    assert many - few == 18 and sum(rows_looped) - sum(rows_many) == 19


def test_tables_of_a_run_are_one_upload_where_the_type_names_kernels(cuda):
    (_, uploads), (_, early) = [averaged(kind, "cuda")[1] for kind in (Average, AtOnce)]
    assert uploads == 1 and early > 4


def test_what_is_started_at_once_is_counted_for_its_graph(cuda):
    averaged(AtOnce, "cuda")
    before = queue().counts()
    with db.Graph("cuda", grad=False) as graph:
        y = AtOnce(F.tanh(F.input(graph, np.ones((3, 4)))), decay=0.5)
        graph.forward()
        statistics = graph.statistics
        started = queue().counts() - before
        assert started == {"launches": statistics.launches, "uploads": statistics.uploads}
        assert statistics.launches == 3 and y.value.shape == (3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_a_kernel_is_planned_without_a_gpu(kind, request):
    def build(graph):
        xs = [F.input(graph, x).keep() for x, _ in sentences()]
        return F.sum([F.sum(F.tanh(kind(F.tanh(x), decay=0.5))) for x in xs])

    with db.Graph() as graph:
        planned = graph.estimate(build(graph), device="cuda").peak_bytes
    request.getfixturevalue("cuda")
    with db.Graph("cuda") as graph:
        graph.backward(build(graph))
        assert graph.peak_bytes == planned


def test_no_sentence_with_rows_is_no_launch(cuda):
    with db.Graph("cuda") as graph:
        y = Average(F.input(graph, np.zeros((0, 3))), decay=0.5)
        assert y.value.shape == (0, 3)


def test_a_kernel_may_have_the_name_of_one_of_ours_and_of_another_text(cuda):
    def filled(number):
        kernel = db.CudaKernel(
            'extern "C" __global__ void softmax(REAL* y, int n) {'
            f"    if (threadIdx.x < n) y[threadIdx.x] = {number}; }}"
        )

        class Filled(db.Operation):
            __slots__ = ()

            def infer_shape(self, x):
                return x

            @classmethod
            def forward_batch(cls, batch, y, x):
                batch.launch(kernel, 1, 32, (y.flat, y.flat.size))

        return Filled

    with db.Graph("cuda", grad=False) as graph:
        x = F.input(graph, [[0.0, 0.0]])
        values = [kind(x) for kind in (filled(1), filled(2), F.softmax)]
        graph.forward()
        assert [y.value.tolist() for y in values] == [[[1, 1]], [[2, 2]], [[0.5, 0.5]]]


# Errors -------------------------------------------------------------------------------------------

LINE = inspect.currentframe().f_lineno
MISSPELT = r"""
extern "C" __global__ void shift(const REAL* x, REAL* y, int n) {
    const int i = threadIdx.x;
    if (i < n) y[i] = zzz[i] + 1;
}
"""
MISSPELT_LINE = LINE + 4
SHIFT = db.CudaKernel(MISSPELT.replace("zzz", "x"))


class Shift(db.Operation):
    """y = x + 1, with arguments of a test."""

    __slots__ = ("args", "kernel")

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        batch.launch(batch.first.kernel, *batch.first.args(x, y))


def shift(device, kernel, args):
    with db.Graph(device, "float32", grad=False) as graph:
        return Shift(F.input(graph, np.ones((3, 4))), kernel=kernel, args=args).value


def right(x, y):
    return 1, 32, (x.flat, y.flat, x.flat.size)


@pytest.mark.parametrize("kind", [True, False])
def test_a_text_that_does_not_compile_is_an_error_at_the_users_line(cuda, monkeypatch, kind):
    monkeypatch.setattr(Shift, "names_kernels", kind)
    with pytest.raises(BackendError, match="kernel shift does not compile") as caught:
        shift("cuda", db.CudaKernel(MISSPELT), right)
    message = str(caught.value)
    assert f"{__file__}:{MISSPELT_LINE}" in message and "zzz" in message and "/own_" not in message
    assert any(["Shift #" in note for note in caught.value.__notes__])
    assert shift("cuda", SHIFT, right).tolist() == np.full((3, 4), 2.0).tolist()


def test_nvrtc_too_names_the_users_line():
    if why := nvrtc.missing():
        pytest.skip(why)
    text = db.CudaKernel(MISSPELT)._source
    with pytest.raises(nvrtc.CompileError) as caught:
        nvrtc.compile_kernels(text.text, "kernel.cu", 80, ["-DREAL=float"])
    told = text.in_users_lines(str(caught.value))
    assert f"{__file__}:{MISSPELT_LINE}: error" in told and "zzz" in told


def test_a_text_that_was_put_together_is_told_by_its_own_lines(cuda):
    kernel = db.CudaKernel(MISSPELT.replace("n)", "m)"))
    with pytest.raises(BackendError, match="the text of CudaKernel:4"):
        shift("cuda", kernel, right)


def test_on_the_cpu_a_launch_says_how_to_tell_devices_apart():
    with pytest.raises(BackendError, match=r"Shift #1: kernel shift (.*\n)*.*device\.is_cuda"):
        shift("cpu", SHIFT, right)


@pytest.mark.parametrize(
    ("error", "message", "args"),
    [
        (ShapeError, "shift takes 3 arguments, not 2", lambda x, y: (1, 32, (x.flat, y.flat))),
        (ShapeError, "'x' is not C-contiguous", lambda x, y: (1, 32, (x.values.T, y.flat, 12))),
        (DtypeError, "'n' is an integer, not 1.5", lambda x, y: (1, 32, (x.flat, y.flat, 1.5))),
        (DtypeError, r"`REAL\* y` is given", lambda x, y: (1, 32, (x.flat, np.zeros(12), 12))),
        (OverflowError, "out of bounds|too large", lambda x, y: (1, 32, (x.flat, y.flat, 1 << 40))),
        (ShapeError, r"a block of \(32, 64\) threads", lambda x, y: (1, (32, 64), ())),
        (ShapeError, r"grid \(-1,\)\.", lambda x, y: (-1, 32, ())),
        (ShapeError, r"grid \(1\.5,\)\.", lambda x, y: (1.5, 32, ())),
        (ShapeError, r"block \(1, 1, 1, 1\)\.", lambda x, y: (1, (1, 1, 1, 1), ())),
        (ShapeError, "a grid of 1 x 70000 blocks", lambda x, y: ((1, 70000), 1, right(x, y)[2])),
    ],
)
def test_a_wrong_launch_is_an_error_that_names_kernel_and_node(cuda, error, message, args):
    with pytest.raises(error, match=message) as caught:
        shift("cuda", SHIFT, args)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "shift" in told and "Shift #1, in a batch of 1" in told and "own_" not in told


def test_a_shape_that_does_not_fit_names_node_and_sentence():
    with db.Graph() as graph, pytest.raises(ShapeError, match=r"Average #new, sentence 1: x has"):
        for x in ([[1.0, 2.0]], [1.0, 2.0]):
            Average(F.input(graph, x), decay=0.5)


@pytest.mark.parametrize(
    ("error", "message", "args"),
    [
        (ArgumentError, "a source text expected, not None", (None,)),
        (ArgumentError, "no such kernel; the text has none", ("__global__ void f(int n) {}",)),
        (ArgumentError, "no such kernel; the text has average, average_b", (TEXT, "averages")),
        (ArgumentError, "several kernels and no name; the text has average, a", (TEXT,)),
    ],
)
def test_a_text_without_the_kernel_is_refused_at_once(error, message, args):
    with pytest.raises(error, match=message):
        db.CudaKernel(*args)


@pytest.mark.parametrize("parameter", ["float4 v", "const float x[]", "REAL& x", "int"])
def test_a_parameter_that_cannot_be_packed_is_refused_at_once(parameter):
    with pytest.raises(DtypeError, match=r"kernel f: parameter .* is neither a pointer nor"):
        db.CudaKernel(f'extern "C" __global__ void f({parameter}) {{}}')
