"""Python threads with graphs of their own do not touch each other, and are told where they would.

Each table of the process is looked up and changed by two threads, one of which is interrupted by
the other at each of its lines. `tests.threads` takes whole steps instead.
"""

import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dynbatch as db
from dynbatch import backend, models, random
from dynbatch import nodes as F
from dynbatch.batcher.schedule import policies, schedule
from dynbatch.batcher.schedule.plan import Structure
from dynbatch.batcher.steps import parameter_gradients as gradients
from dynbatch.errors import GraphError
from dynbatch.kernels.cuda.runtime import in_flight
from dynbatch.kernels.runtime import openblas, parallel
from dynbatch.kernels.runtime.workers import Workers
from dynbatch.memory import planner, pool
from dynbatch.models.evaluating import evaluating
from dynbatch.nodes import signature
from dynbatch.recent import Recent
from dynbatch.reporting import unbatched
from tests.interruptions import interrupted

pytestmark = pytest.mark.slow


def weights(factor):
    return SimpleNamespace(W=db.Parameter(np.full((2, 2), factor, np.float32)))


# Cells --------------------------------------------------------------------------------------------


def scanned(step, params):
    with db.Graph() as graph:
        ys, _ = db.scan(step, F.constant(graph, 1.0, (2, 2)), 2, params)
        return ys.value.tolist()


def test_two_models_scan_one_cell():
    pair = weights(0.25), weights(-0.5)

    def make():
        @db.cell
        def step(x, h, p):
            h = x + F.linear(h, p.W)
            return h, h

        for params in reversed(pair):
            scanned(step, params)
        return lambda: scanned(step, pair[0]), lambda: scanned(step, pair[1])

    expected = tuple([function() for function in make()])
    assert expected[0] != expected[1]
    for found in interrupted(make, "cells/cell.py", "compiler/traced.py"):
        assert found == expected


def test_threads_that_trace_one_model_at_once_go_on_with_one_program():
    params = weights(0.25)
    counts = []

    def make():
        @db.cell
        def step(x, h, p):
            h = x + F.linear(h, p.W)
            return h, h

        def scan():
            scanned(step, params)
            return len(step.programs)

        return scan, scan

    for found in interrupted(make, "cells/cell.py", "compiler/traced.py"):
        counts += found
    assert set(counts) == {1}


def called(step, params, rows):
    """A chain of calls that are given vectors, or for `rows` matrices."""
    with db.Graph(dtype="float64", grad=False) as graph:
        h = 2
        for k in (1.0, 2.0):
            given = [F.constant(graph, k, (2,))]
            if rows:
                given = [F.constant(graph, k, (rows, 2))]
            h = step(h, params, *given)
        return h.value.tolist()


@pytest.mark.parametrize(
    ("rows", "known"), [((0, 0), False), ((3, 5), False), ((3, 5), True), ((0, 4), True)]
)
def test_two_models_call_one_cell(rows, known):
    pair = [SimpleNamespace(W=db.Parameter(np.full((2, 2), factor))) for factor in (0.25, -0.5)]

    def make():
        @db.cell
        def step(h, p, x):
            return F.linear(h, p.W) + (F.sum(x, dim=0) if x.ndim == 2 else x)

        runs = [
            lambda params=params, count=count: called(step, params, count)
            for params, count in zip(pair, rows, strict=True)
        ]
        if known:
            for run in runs:
                run()
        return runs

    expected = tuple([function() for function in make()])
    assert expected[0] != expected[1]
    for found in interrupted(make, "cells/calls/calls.py", "compiler/traced.py"):
        assert found == expected


# Tables of the process ----------------------------------------------------------------------------


def test_a_signature_has_a_number_of_its_own():
    def make():
        keys = [(F.tanh, object()), (F.sigmoid, object())]
        return [lambda key=key: (signature.intern_signature(key), key) for key in keys]

    for found in interrupted(make, "nodes/signature.py"):
        assert found[0][0] != found[1][0]
        for number, key in found:
            assert signature._keys[number] is key


def test_plans_and_fitted_policies_survive_that_others_drive_them_out(monkeypatch):
    def make():
        monkeypatch.setattr(schedule, "_plans", Recent(1))
        monkeypatch.setattr(policies, "_fitted", Recent(1))
        one, other = [Structure((k, k, k + 1), ((), (), (0, 1))) for k in (0, 5)]
        schedule.schedule_structure(one, "learned")
        return [lambda s=s: schedule.schedule_structure(s, "learned") for s in (one, other)]

    for plans in interrupted(
        make, "batcher/schedule/schedule.py", "batcher/schedule/policies.py", "recent.py"
    ):
        assert [len(plan.steps) for plan in plans] == [2, 2]


def test_offsets_of_two_threads_are_planned_each_for_itself(monkeypatch):
    def placed(sizes):
        stages = range(len(sizes) + 1)
        return planner.assign_offsets(sizes, stages[:-1], stages[1:], [1] * len(sizes))

    def make():
        monkeypatch.setattr(planner, "_known", Recent(1))
        placed((4, 8, 4))
        return lambda: placed((4, 8, 4)), lambda: placed((16, 2, 2))

    expected = tuple([function() for function in make()])
    for found in interrupted(make, "memory/planner.py", "recent.py"):
        assert found == expected


def test_no_seed_is_given_twice():
    def make():
        return random.next_seed, random.next_seed

    for one, other in interrupted(make, "dynbatch/random.py"):
        assert one != other


def test_a_thread_that_calls_seed_draws_the_same_whatever_others_draw():
    def draw(others):
        db.seed(3)
        found = []
        for _ in range(3):
            found.append(random.next_seed())
            others()
        return found

    def in_thread(others):
        found = []
        thread = threading.Thread(target=lambda: found.extend(draw(others)))
        thread.start()
        thread.join()
        return found

    def draws_in_between():
        thread = threading.Thread(target=random.next_seed)
        thread.start()
        thread.join()

    before = random.get_state()
    assert in_thread(lambda: None) == in_thread(draws_in_between)
    after = random.get_state()
    assert (after["seed"], after["count"]) == (before["seed"], before["count"] + 3)


def test_the_warning_of_small_batches_comes_once_whoever_is_first(monkeypatch):
    record = SimpleNamespace(plans=[], statistics=SimpleNamespace(nodes=1, batches=1))
    monkeypatch.setattr(unbatched, "why_apart", lambda record, observed: None)
    monkeypatch.setattr(warnings, "warn", lambda *_, **__: given.append(1))
    given = []

    def make():
        monkeypatch.setattr(unbatched, "_warned", False)
        return lambda: unbatched.warn(record, None), lambda: unbatched.warn(record, None)

    for count, found in enumerate(interrupted(make, "reporting/unbatched.py"), 1):
        assert found == (None, None)
        assert len(given) == count


# Threads of the library's own, and of BLAS --------------------------------------------------------


def test_fewer_threads_may_be_set_while_tasks_begin():
    before = parallel.num_threads()
    done = []

    def make():
        done.clear()
        parallel.set_num_threads(2)
        tasks = [lambda: done.append(1)] * 3
        return lambda: parallel.run(tasks), lambda: parallel.set_num_threads(1)

    try:
        for found in interrupted(make, "kernels/runtime/parallel.py"):
            assert found == (None, None)
            assert len(done) == 3
    finally:
        parallel.set_num_threads(before)


def test_the_workers_are_made_once(monkeypatch):
    before = parallel.num_threads()

    def make():
        ours = Workers()
        monkeypatch.setattr(parallel, "workers", ours)

        def run():
            parallel.run([lambda: None] * 2)
            return len(ours.threads)

        return run, run

    parallel.set_num_threads(2)
    try:
        for found in interrupted(make, "kernels/runtime/parallel.py", "kernels/runtime/workers.py"):
            assert found == (1, 1)
    finally:
        parallel.set_num_threads(before)


def test_blas_has_one_thread_until_the_last_run_has_ended():
    if openblas.thread_setting() is None:
        pytest.skip("this NumPy does not carry OpenBLAS")
    get, put = openblas.thread_setting()
    before = get()
    put(2)
    try:
        one, other = parallel.one_blas_thread(), parallel.one_blas_thread()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert get() == 1
        other.__exit__(None, None, None)
        assert get() == 2
    finally:
        put(before)


# A GPU --------------------------------------------------------------------------------------------


def test_what_a_stream_still_reads_is_held_whoever_holds_more(monkeypatch):
    event = SimpleNamespace(done=False, record=lambda stream: None)
    cuda = SimpleNamespace(Event=lambda **_: event, get_current_stream=lambda: None)
    cupy = SimpleNamespace(cuda=cuda)
    monkeypatch.setattr(in_flight, "_held", [])

    def make():
        in_flight._held.clear()
        return lambda: in_flight.hold(cupy, "one"), lambda: in_flight.hold(cupy, "other")

    for _ in interrupted(make, "cuda/in_flight.py", event="opcode"):
        assert sorted([used for _, used in in_flight._held]) == ["one", "other"]


def test_arenas_of_a_gpu_are_reused_in_their_own_thread_only(cuda):
    device = backend.device("cuda")
    found = []
    thread = threading.Thread(target=lambda: found.append(pool.pool_of(device)))
    thread.start()
    thread.join()
    assert pool.pool_of(device) is pool.pool_of(device)
    assert pool.pool_of(device) is not found[0]


# A model that several threads use -----------------------------------------------------------------


def test_a_model_stays_in_evaluation_mode_until_the_last_search_has_ended():
    model = models.Linear(2, 2)
    one, other = evaluating(model), evaluating(model)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not model.training
    other.__exit__(None, None, None)
    assert model.training


class Waiting(db.Node):
    """x, whose forward and backward may wait for a test."""

    hook = staticmethod(lambda what: None)

    def infer_shape(self, x):
        return x

    @classmethod
    def forward_batch(cls, batch, y, x):
        y.values[...] = x.values
        cls.hook("forward")

    @classmethod
    def backward_batch(cls, batch, dy, dx):
        if dx is not None:
            dx.values[...] = dy.values
        cls.hook("backward")


@pytest.fixture
def during(monkeypatch):
    """Have something done while another thread is in a node's forward, or backward."""

    def do(what, background, meanwhile):
        begun, go_on = threading.Event(), threading.Event()
        failed = []

        def hook(now):
            if now == what and threading.current_thread() is thread:
                begun.set()
                go_on.wait(10)

        def run():
            try:
                background()
            except Exception as error:
                failed.append(error)

        monkeypatch.setattr(Waiting, "hook", staticmethod(hook))
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert begun.wait(10)
            meanwhile()
        finally:
            go_on.set()
            thread.join()
        assert not failed

    return do


def train(parameter):
    with db.Graph() as graph:
        graph.backward(F.sum(Waiting(F.linear(F.input(graph, [[1.0, 2.0]]), parameter))))


def test_one_parameter_is_not_trained_by_two_threads_at_once(during):
    parameter = db.Parameter(np.ones((2, 2), np.float32), name="shared")

    def meanwhile():
        with pytest.raises(
            GraphError, match="another thread is adding to the gradient of 'shared'"
        ):
            train(parameter)

    during("backward", lambda: train(parameter), meanwhile)
    assert parameter.grad.tolist() == [[1.0, 2.0]] * 2
    train(parameter)  # one after the other is no error: gradients add
    assert parameter.grad.tolist() == [[2.0, 4.0]] * 2


def test_a_parameter_that_is_given_up_meanwhile_can_be_claimed():
    parameter = db.Parameter(np.ones((2, 2), np.float32))

    def make():
        first, second = gradients.Claim(), gradients.Claim()
        first.take([parameter])

        def take():
            try:
                second.take([parameter])
            finally:
                second.release()

        return take, first.release

    for found, _ in interrupted(make, "batcher/steps/parameter_gradients.py", event="opcode"):
        assert found is None or isinstance(found, GraphError)


def test_a_backward_that_failed_leaves_the_parameter_free(monkeypatch):
    parameter = db.Parameter(np.ones((2, 2), np.float32))

    def fail(what):
        if what == "backward":
            raise KeyError(what)

    monkeypatch.setattr(Waiting, "hook", staticmethod(fail))
    with pytest.raises(KeyError):
        train(parameter)
    monkeypatch.setattr(Waiting, "hook", staticmethod(lambda what: None))
    train(parameter)
    assert parameter.grad.tolist() == [[1.0, 2.0]] * 2


def test_a_gradient_that_came_after_planning_is_not_written_over(monkeypatch):
    parameter = db.Parameter(np.ones((2, 2), np.float32))
    first = []

    def train_in_between(what):
        if what == "forward" and not first:
            first.append(what)
            parameter.grad = np.zeros((2, 2), np.float32)

    monkeypatch.setattr(Waiting, "hook", staticmethod(train_in_between))
    with pytest.raises(GraphError, match="another thread"):
        train(parameter)


def test_a_model_that_is_trained_may_be_read_for_another_loss(during):
    parameter = db.Parameter(np.ones((2, 2), np.float32))

    def read():
        with db.Graph(grad=False) as graph:
            return F.linear(F.input(graph, [[1.0, 2.0]]), parameter).value.tolist()

    found = []
    during("backward", lambda: train(parameter), lambda: found.append(read()))
    assert found == [[[3.0, 3.0]]]


@pytest.mark.parametrize("what", ["forward", "close", "backward", "value"])
def test_a_graph_that_runs_in_another_thread_is_left_alone(during, what):
    graph = db.Graph()
    x = Waiting(F.input(graph, [1.0]))
    more = F.sum(F.input(graph, [2.0]) * 3.0)
    use = {
        "forward": graph.forward,
        "close": graph.close,
        "backward": lambda: graph.backward(more),
        "value": lambda: more.value,
    }[what]

    def meanwhile():
        with pytest.raises(GraphError, match="is running in another thread"):
            use()

    during("forward", lambda: x.value, meanwhile)
    assert x.value.tolist() == [1.0]
    graph.close()


def test_two_threads_that_build_in_one_graph_are_told_where_nodes_would_be_lost():
    def make():
        graph = db.Graph()
        return [lambda: F.input(graph, [1.0]).index] * 2

    refused = 0
    for found in interrupted(make, "dynbatch/graph_nodes.py"):
        errors = [one for one in found if isinstance(one, GraphError)]
        assert errors or sorted(found) == [0, 1]
        refused += bool(errors)
        assert all(["two threads made a node at once" in str(error) for error in errors])
    assert refused
