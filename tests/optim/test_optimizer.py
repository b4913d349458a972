import threading

import numpy as np
import pytest

from dynbatch import backend, models, optim
from dynbatch.errors import BackendError, CheckpointError, DtypeError, ShapeError
from dynbatch.kernels.c.runtime import library
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.optimizers import Rule
from dynbatch.kernels.runtime import parallel
from dynbatch.kernels.runtime.transfer import to_device, to_host
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.cuda import devices
from tests.marks import exhaustive
from tests.optim.settings import ALGORITHMS

every_algorithm = pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def sparse_gradient(rng, shape, count):
    rows = np.sort(rng.choice(shape[0], count, replace=False))
    return RowSparse(rows, rng.standard_normal((count, shape[1])), shape)


class TwoLayers(Module):
    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.table = Parameter(rng.standard_normal((7, 3)))
        self.bias = Parameter(rng.standard_normal(3))

    def give_gradients(self, rng):
        self.table.grad = sparse_gradient(rng, self.table.shape, 2)
        self.bias.grad = rng.standard_normal(3)


@every_algorithm
@pytest.mark.parametrize("shape", [(40, 3), (3, 70_000), exhaustive((3, 200_000)), (9000, 5)])
def test_row_sparse_gradient_gives_the_bits_of_the_dense_one(make, shape):
    start = np.random.default_rng(1).standard_normal(shape)
    dense, sparse = Parameter(start.copy()), Parameter(start.copy())
    on_dense, on_sparse = make([dense]), make([sparse])
    rng = np.random.default_rng(2)
    for count in (2, 0, 1, shape[0]):
        sparse.grad = sparse_gradient(rng, shape, count)
        dense.grad = sparse.grad.dense()
        on_dense.step()
        on_sparse.step()
        assert np.array_equal(dense.value, sparse.value)


@every_algorithm
def test_threads_and_blocks_do_not_change_a_bit(make, monkeypatch):
    def train(num_threads, block_bytes):
        monkeypatch.setattr("dynbatch.kernels.optimizers.BLOCK_BYTES", block_bytes)
        monkeypatch.setattr("dynbatch.kernels.optimizers.LEAST_ELEMENTS", 1 << 12)
        monkeypatch.setattr(parallel, "available", lambda: num_threads)
        rng = np.random.default_rng(3)
        parameters = [Parameter(rng.standard_normal(s)) for s in [(30, 500), 7, (9000, 1)]]
        optimizer = make(parameters)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = rng.standard_normal(parameter.shape)
            parameters[2].grad = sparse_gradient(rng, (9000, 1), 7000)
            optimizer.step()
        return [parameter.value for parameter in parameters]

    for one, other in zip(train(1, 1 << 20), train(3, 1 << 13), strict=True):
        assert np.array_equal(one, other)


def test_large_parameters_are_shared_between_threads(monkeypatch):
    seen = set()

    def spy(rule, *block):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            both.wait(timeout=10)  # the second thread ends the wait of the first
        apply(rule, *block)

    apply = Rule.__call__
    monkeypatch.setattr(Rule, "__call__", spy)
    both = threading.Barrier(2)
    monkeypatch.setitem(parallel._settings, "threads", 2)
    parameter = Parameter(np.zeros(1 << 18, np.float32))
    parameter.grad = np.ones(1 << 18, np.float32)
    with library.reference_only():
        optim.SGD([parameter], lr=1.0).step()
    assert len(seen) == 2 and np.all(parameter.value == -1)


@every_algorithm
def test_step_clears_the_gradients_unless_told_to_keep_them(make):
    parameter = Parameter(np.ones((2, 2), np.float32))
    optimizer = make([parameter])
    gradient = parameter.grad = np.full((2, 2), 0.5, np.float32)
    optimizer.step(clear=False)
    assert parameter.grad is gradient and np.all(gradient == 0.5)
    optimizer.step()
    assert parameter.grad is None


@every_algorithm
def test_frozen_parameters_and_parameters_without_gradient_are_skipped(make):
    frozen, idle, live = (Parameter(np.ones(3)) for _ in range(3))
    frozen.frozen = True
    frozen.grad, live.grad = np.ones(3), np.ones(3)
    optimizer = make([("frozen", frozen), ("idle", idle), ("live", live)])
    optimizer.step()
    assert np.all(frozen.value == 1) and np.all(idle.value == 1) and np.all(live.value != 1)
    assert {name.split("/")[0] for name in optimizer.state_dict()} == {"lr", "live"}


@every_algorithm
def test_state_of_float32_parameters_is_float32(make):
    parameter = Parameter(np.ones(4, np.float32))
    optimizer = make([parameter])
    optimizer.lr = np.float64(0.1)  # as a schedule of one's own may set it
    parameter.grad = np.ones(4, np.float32)
    optimizer.step()
    assert parameter.value.dtype == np.float32
    slots = [v for k, v in optimizer.state_dict().items() if k != "lr" and not k.endswith("/steps")]
    assert all(slot.dtype == np.float32 for slot in slots)


@every_algorithm
def test_loaded_state_goes_on_to_the_same_bits(make):
    def run(model, optimizer, rng, steps):
        for _ in range(steps):
            model.give_gradients(rng)
            optimizer.step()

    whole, rng = TwoLayers(), np.random.default_rng(5)
    optimizer = make(whole)
    run(whole, optimizer, rng, 3)
    optimizer.lr *= 0.5
    weights, state, position = whole.state_dict(), optimizer.state_dict(), rng.bit_generator.state
    run(whole, optimizer, rng, 3)

    resumed = TwoLayers(seed=9)
    resumed.load_state_dict(weights)
    other = make(resumed)
    other.load_state_dict(state)
    rng.bit_generator.state = position
    run(resumed, other, rng, 3)
    assert np.array_equal(whole.table.value, resumed.table.value)
    assert np.array_equal(whole.bias.value, resumed.bias.value)
    assert other.lr == optimizer.lr


def test_state_names_follow_the_parameters_not_their_order():
    model = TwoLayers()
    optimizer = optim.Adam(model)
    model.give_gradients(np.random.default_rng(0))
    optimizer.step()
    slots = ("steps", "gradient_sum", "square_sum")
    names = {f"{name}/{slot}" for name in ("table", "bias") for slot in slots}
    assert optimizer.state_dict().keys() == names | {"lr"}

    backwards = optim.Adam(reversed(list(model.named_parameters())))
    backwards.load_state_dict(optimizer.state_dict())
    state = backwards.state_dict()
    assert all(np.array_equal(state[k], v) for k, v in optimizer.state_dict().items())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: s.pop("bias/square_sum"), r"missing: \['bias/square_sum'\]"),
        (lambda s: s.update({"head/steps": np.array(1)}), r"unknown: \['head/steps'\]"),
        (lambda s: s.update({"bias/square_sum": np.zeros(4)}), r"optimizer \(3,\), state \(4,\)"),
        (lambda s: s.update({"lr": np.array(-1.0)}), "the state's lr is -1.0"),
        (lambda s: s.update({"lr": np.array(np.nan)}), "the state's lr is nan"),
        (lambda s: s.update({"lr": np.array("high")}), "the state's lr is high"),
    ],
)
def test_state_that_does_not_fit_is_refused_whole(spoil, says):
    model = TwoLayers()
    optimizer = optim.Adam(model, lr=0.25)
    model.give_gradients(np.random.default_rng(0))
    optimizer.step()
    before = optimizer.state_dict()
    state = optimizer.state_dict() | {"lr": np.array(9.0)}
    spoil(state)
    with pytest.raises(CheckpointError, match=says):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_momentum_state_is_refused_by_plain_sgd():
    parameter = Parameter(np.ones(2), name="w")
    optimizer = optim.SGD([parameter], momentum=0.9)
    parameter.grad = np.ones(2)
    optimizer.step()
    with pytest.raises(CheckpointError, match=r"unknown: .*w/momentum_buffer"):
        optim.SGD([parameter]).load_state_dict(optimizer.state_dict())


def test_optimizer_follows_a_model_turned_to_float64():
    model = TwoLayers().astype(np.float32)
    optimizer = optim.Adam(model)
    model.give_gradients(np.random.default_rng(0))
    optimizer.step()
    model.astype(np.float64)
    model.give_gradients(np.random.default_rng(1))
    optimizer.step()
    assert optimizer.state_dict()["bias/square_sum"].dtype == np.float64


def test_value_that_is_not_contiguous_is_updated():
    parameter = Parameter(np.zeros((2, 3)))
    parameter.value = np.ones((3, 2)).T
    parameter.grad = np.ones((3, 2)).T
    optim.SGD([parameter], lr=1.0).step()
    assert np.all(parameter.value == 0)


def test_equal_names_are_told_apart_and_tied_parameters_kept_once():
    one, two = Parameter(np.ones(1)), Parameter(np.ones(1))
    names = [name for name, _ in optim.SGD([one, two, one]).named_parameters()]
    assert names == ["parameter", "parameter.1"]


def test_gradient_of_another_shape_is_refused_before_any_update():
    good, bad = Parameter(np.ones(2)), Parameter(np.ones((2, 2)), name="bad")
    good.grad, bad.grad = np.ones(2), np.ones((2, 3))
    with pytest.raises(ShapeError, match=r"'bad'.*\(2, 3\)"):
        optim.SGD([good, bad]).step()
    assert np.all(good.value == 1)


@every_algorithm
def test_a_maximizing_step_has_the_bits_of_one_by_the_opposite_gradient(make):
    rng, steps = np.random.default_rng(0), []
    optimizer = make([Parameter(np.zeros(9))])
    arrays = [rng.uniform(0.5, 0.7, 9) for _ in optimizer.slots]
    value, gradient, scratch = rng.standard_normal(9), rng.standard_normal(9), np.empty((2, 9))
    for sign in (1, -1):
        optimizer.maximize = sign == -1
        copies = [array.copy() for array in (value, *arrays)]
        optimizer.rule(3)(copies[0], sign * gradient, copies[1:], [*scratch])
        steps.append([array.tobytes() for array in copies])
    assert steps[0] == steps[1] != [array.tobytes() for array in (value, *arrays)]


def test_maximizing_goes_up_on_each_device(device):
    weights = [Parameter(np.zeros((5, 2))).to(device) for _ in range(2)]
    gradient = RowSparse(np.array([1, 4]), np.array([[1.0, -2.0], [3.0, 0.5]]), (5, 2))
    for weight, maximize in zip(weights, (True, False), strict=True):
        weight.grad = gradient.to(weight.device)
        optim.Adam([weight], lr=0.1, maximize=maximize).step()
    up, down = [weight.numpy() for weight in weights]
    np.testing.assert_array_equal(up, -down)
    np.testing.assert_array_equal(np.sign(up), np.sign(gradient.dense()))


def test_lion_is_the_program_of_its_paper():
    rng = np.random.default_rng(0)
    weight, m = Parameter(rng.standard_normal((4, 3))), np.zeros((4, 3))
    expected = weight.numpy()
    optimizer = optim.Lion([weight], lr=0.1, betas=(0.5, 0.8), weight_decay=0.2)
    for _ in range(5):
        g = rng.standard_normal((4, 3))
        step = np.sign(0.5 * m + 0.5 * g)
        expected, m = expected - 0.1 * (step + 0.2 * expected), 0.8 * m + 0.2 * g
        weight.grad = g
        optimizer.step()
    np.testing.assert_allclose(weight.value, expected, rtol=1e-12)


def test_maximize_is_true_or_false_and_a_setting_of_groups():
    one, other = Parameter(np.zeros(1)), Parameter(np.zeros(1))
    optimizer = optim.SGD([{"params": [one], "maximize": True}, {"params": [other]}], lr=1.0)
    one.grad, other.grad = np.ones(1), np.ones(1)
    optimizer.step()
    assert one.value == 1 and other.value == -1
    with pytest.raises(ValueError, match="maximize is 2"):
        optim.Adam([one], maximize=2)


def test_settings_out_of_range_are_refused_by_name():
    one = [Parameter(np.ones(1))]
    for make, setting in [
        (lambda: optim.SGD(one, lr=-1.0), "lr"),
        (lambda: optim.SGD(one, nesterov=True), "momentum"),
        (lambda: optim.SGD(one, momentum=0.9, dampening=0.1, nesterov=True), "dampening"),
        (lambda: optim.Adam(one, betas=(0.9, 1.0)), "betas"),
        (lambda: optim.AdamW(one, weight_decay=-1.0), "weight_decay"),
        (lambda: optim.Adagrad(one, initial_accumulator_value=-1.0), "initial_accumulator_value"),
        (lambda: optim.RMSprop(one, alpha=-0.5), "alpha"),
        (lambda: optim.Adadelta(one, rho=1.5), "rho"),
    ]:
        with pytest.raises(ValueError, match=setting):
            make()


def test_parameters_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match="no parameters"):
        optim.Adam([])
    with pytest.raises(DtypeError, match=r"item 1 .* ndarray"):
        optim.Adam([Parameter(np.ones(1)), np.ones(1)])


def test_of_several_models_the_fix_is_their_parameters():
    with pytest.raises(DtypeError, match=r"item 0 .* Linear(?s:.*)\[\*a\.parameters\(\), \*b"):
        optim.Adam([models.Linear(2, 2), models.Linear(2, 2)])


# On a GPU -----------------------------------------------------------------------------------------


def on_cuda(array):
    return to_device(array, backend.device("cuda"))


def give_gradients(model, rng):
    """Give the gradients of `TwoLayers.give_gradients`, where the model is."""
    model.give_gradients(rng)
    model.table.grad = model.table.grad.to(model.table.device)
    model.bias.grad = to_device(model.bias.grad, model.bias.device)


@every_algorithm
def test_a_step_is_one_launch_and_one_upload_for_each_dtype(make, cuda):
    rng = np.random.default_rng(0)
    shapes = [(7, 3), 4, (40, 2), 1, 5, (6, 3)]
    parameters = [Parameter(rng.standard_normal(shape)).to("cuda") for shape in shapes]
    parameters[4] = Parameter(np.ones(5, np.float32)).to("cuda")
    optimizer = make(parameters)
    for _ in range(3):
        for parameter in parameters[:-1]:
            gradient = rng.standard_normal(parameter.shape).astype(parameter.dtype)
            parameter.grad = on_cuda(gradient)
        parameters[-1].grad = sparse_gradient(rng, (6, 3), 2).to("cuda")
        before = queue().launches, queue().uploads
        optimizer.step()
        assert (queue().launches, queue().uploads) == (before[0] + 2, before[1] + 1)


@every_algorithm
def test_a_step_waits_for_nothing(make, cuda):
    model = TwoLayers().to("cuda")
    optimizer = make(model)
    give_gradients(model, np.random.default_rng(0))
    with devices.waits() as waits:
        optimizer.step(clear=False)
    assert not waits


@every_algorithm
@pytest.mark.parametrize("moves", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_the_state_follows_a_model_that_moves(make, cuda, moves):
    whole, moved = TwoLayers(), TwoLayers()
    on_whole, on_moved = make(whole), make(moved)
    rngs = [np.random.default_rng(5) for _ in range(2)]
    for device in moves:
        moved.to(device)
        for _ in range(2):
            for model, optimizer, rng in ((whole, on_whole, rngs[0]), (moved, on_moved, rngs[1])):
                give_gradients(model, rng)
                optimizer.step()
    assert moved.table.device.name == moves[-1]
    for states in ((whole, moved), (on_whole, on_moved)):
        expected, found = (each.state_dict() for each in states)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert isinstance(found[name], np.ndarray)
            np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


@every_algorithm
def test_state_is_loaded_into_the_arrays_of_the_device(make, cuda):
    source, target = TwoLayers(), TwoLayers(seed=1).to("cuda")
    on_source, on_target = make(source), make(target)
    for model, optimizer in ((source, on_source), (target, on_target)):
        give_gradients(model, np.random.default_rng(3))
        optimizer.step()
    slots = {id(a) for state in on_target._states for a in state.slots.values()}
    state = on_source.state_dict()
    on_target.load_state_dict(state)
    assert {id(a) for each in on_target._states for a in each.slots.values()} == slots
    assert all(np.array_equal(value, on_target.state_dict()[k]) for k, value in state.items())


def test_arrays_that_are_not_contiguous_are_stepped(cuda):
    parameter = Parameter(np.zeros((2, 3))).to("cuda")
    parameter.value = on_cuda(np.arange(6.0).reshape(3, 2)).T
    parameter.grad = on_cuda(np.arange(6.0).reshape(3, 2)).T
    optim.SGD([parameter], lr=1.0).step()
    assert not parameter.numpy().any()


def test_parameters_of_both_devices_are_stepped(cuda):
    here, there = Parameter(np.ones(3)), Parameter(np.ones(3)).to("cuda")
    here.grad, there.grad = np.ones(3), on_cuda(np.ones(3))
    optim.SGD([here, there], lr=1.0).step()
    assert not here.value.any() and not to_host(there.value).any()


def test_a_gradient_elsewhere_is_refused_before_any_update(cuda):
    good, bad = Parameter(np.ones(2)), Parameter(np.ones(2), name="bad")
    good.grad, bad.grad = np.ones(2), on_cuda(np.ones(2))
    with pytest.raises(BackendError, match=r"'bad'.* on the cuda, its value on the cpu"):
        optim.SGD([good, bad]).step()
    assert np.all(good.value == 1)
    bad.to("cuda")
    bad.grad = on_cuda(np.ones(2, np.float32))
    with pytest.raises(DtypeError, match=r"'bad'.* is float32, its value float64"):
        optim.SGD([bad]).step()


SWITCHES = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
    "EG": {"momentum": 0.9},
}
every_switch = pytest.mark.parametrize(
    ("name", "setting"), [(name, x) for name, settings in SWITCHES.items() for x in settings]
)


def stepped(optimizer, settings):
    """The optimizer's parameter after a step with each of the settings."""
    for number, setting in enumerate(settings):
        vars(optimizer).update(setting)
        for parameter in (p for _, p in optimizer.named_parameters()):
            parameter.grad = np.full(3, 0.5**number)
        optimizer.step()
    return parameter.value


@every_switch
def test_a_setting_may_be_switched_between_steps_and_its_slots_come_and_go(name, setting):
    on = {setting: SWITCHES[name][setting]}
    off = {setting: type(on[setting])(0)}
    values = []
    for start in (on, off):
        optimizer = getattr(optim, name)([Parameter(np.full(3, 0.25))], lr=0.1, **start)
        (state,) = optimizer._states
        for settings in ([on], [off], [on, off, on, on]):
            values.append(stepped(optimizer, settings).copy())
            assert list(state.slots) == list(optimizer.slots)
            assert optimizer.state_bytes == sum(array.nbytes for array in state.slots.values())
        assert state.num_steps == 6
    assert np.isfinite(values).all()


@every_switch
def test_switched_on_a_setting_begins_as_if_its_slots_were_new(name, setting):
    on, off = {setting: SWITCHES[name][setting]}, {setting: type(SWITCHES[name][setting])(0)}
    values = []
    for settings in ([on, off, on, on], [off, off, on, on]):
        optimizer = getattr(optim, name)([Parameter(np.full(3, 0.25))], lr=0.1, **settings[0])
        stepped(optimizer, settings[:2])
        optimizer._states[0].parameter.value = np.full(3, 0.25)
        values.append(stepped(optimizer, settings[2:]))
    assert np.array_equal(*values)


@every_switch
def test_a_state_fits_the_settings_that_it_is_saved_with(name, setting):
    on, off = {setting: SWITCHES[name][setting]}, {setting: type(SWITCHES[name][setting])(0)}
    for before, after in ((on, off), (off, on)):
        values = []
        for number in range(2):
            parameter = Parameter(np.full(3, 0.25))
            optimizer = getattr(optim, name)([parameter], lr=0.1, **before)
            stepped(optimizer, [before])
            vars(optimizer).update(after)
            if number:
                state = optimizer.state_dict()
                optimizer = getattr(optim, name)([parameter], lr=0.1, **after)
                optimizer.load_state_dict(state)
            values.append(stepped(optimizer, [after, after]))
        assert np.array_equal(*values)
