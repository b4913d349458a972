import math

import numpy as np
import pytest

from dynbatch import optim
from dynbatch.errors import CheckpointError
from dynbatch.parameter import Parameter


def new_optimizer(lr=0.4):
    return optim.SGD([Parameter(np.ones(1))], lr=lr)


def rates(make, count):
    optimizer = new_optimizer()
    schedule = make(optimizer)
    found = []
    for _ in range(count):
        found.append(optimizer.lr)
        schedule.step()
    return found


def torch_rates(make, count):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_constant_stays():
    assert rates(optim.Constant, 3) == [0.4, 0.4, 0.4]


def test_warm_up_equals_pytorch_linear():
    ours = rates(lambda o: optim.LinearWarmup(o, warmup_steps=8), 20)
    theirs = torch_rates(lambda s, o: s.LinearLR(o, start_factor=1 / 8, total_iters=7), 20)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_cosine_equals_pytorch():
    ours = rates(lambda o: optim.Cosine(o, total_steps=15, min_lr=0.01), 15)
    theirs = torch_rates(lambda s, o: s.CosineAnnealingLR(o, T_max=15, eta_min=0.01), 15)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # PyTorch's SequentialLR warns of itself
def test_cosine_after_warm_up_equals_pytorch_sequence():
    def sequence(schedulers, optimizer):
        warm = schedulers.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
        cosine = schedulers.CosineAnnealingLR(optimizer, T_max=12)
        return schedulers.SequentialLR(optimizer, [warm, cosine], milestones=[5])

    ours = rates(lambda o: optim.Cosine(o, total_steps=17, warmup_steps=5), 17)
    np.testing.assert_allclose(ours, torch_rates(sequence, 17), rtol=1e-12)


def test_cosine_stays_at_its_end():
    ours = rates(lambda o: optim.Cosine(o, total_steps=4, min_lr=0.02), 7)
    assert ours[4:] == [0.02, 0.02, 0.02]


def test_inverse_square_root_is_the_rate_of_the_transformer_paper():
    model_size, warmup = 512, 6
    base = (model_size * warmup) ** -0.5
    optimizer = new_optimizer(base)
    schedule = optim.InverseSqrt(optimizer, warmup_steps=warmup)
    for t in range(1, 30):
        expected = model_size**-0.5 * min(t**-0.5, t * warmup**-1.5)
        assert optimizer.lr == pytest.approx(expected, rel=1e-12)
        schedule.step()


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_plateau_equals_pytorch(higher_is_better):
    torch = pytest.importorskip("torch", reason="parity needs PyTorch")
    metrics = np.random.default_rng(3).integers(1, 9, 60).astype(float)
    metrics[7] = math.nan
    optimizer, other = new_optimizer(), torch.optim.SGD([torch.zeros(1)], lr=0.4)
    settings = dict(factor=0.5, patience=2, cooldown=1, min_lr=1e-3)
    schedule = optim.Plateau(optimizer, **settings, higher_is_better=higher_is_better)
    mode = "max" if higher_is_better else "min"
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(other, mode=mode, **settings)
    for metric in metrics:
        schedule.step(metric)
        reference.step(metric)
        assert optimizer.lr == pytest.approx(other.param_groups[0]["lr"], rel=1e-12)
    assert optimizer.lr == 1e-3


def test_plateau_asks_for_its_metric():
    with pytest.raises(ValueError, match=r"schedule\.step\(metric\)"):
        optim.Plateau(new_optimizer()).step()


SCHEDULES = {
    "constant": optim.Constant,
    "warm-up": lambda o: optim.LinearWarmup(o, 4),
    "cosine": lambda o: optim.Cosine(o, 9, warmup_steps=2),
    "inverse-sqrt": lambda o: optim.InverseSqrt(o, 3),
    "plateau": lambda o: optim.Plateau(o, patience=1, factor=0.5),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_loaded_schedule_goes_on_with_the_same_rates(make):
    metrics = [5.0, 6.0, 7.0, 8.0, 4.0, 9.0, 9.0, 9.0]
    optimizer = new_optimizer()
    schedule = make(optimizer)
    for metric in metrics[:3]:
        schedule.step(metric)
    other = new_optimizer(lr=7.0)
    resumed = make(other)
    resumed.load_state_dict(schedule.state_dict())
    assert other.lr == optimizer.lr
    for metric in metrics[3:]:
        schedule.step(metric)
        resumed.step(metric)
        assert other.lr == optimizer.lr


def test_state_of_another_schedule_is_refused():
    optimizer = new_optimizer()
    plateau = optim.Plateau(optimizer)
    with pytest.raises(CheckpointError, match="does not fit this schedule"):
        plateau.load_state_dict(optim.Constant(new_optimizer(9.0)).state_dict())
    assert optimizer.lr == 0.4


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_state_whose_rate_is_no_rate_is_refused_whole(make, rate):
    optimizer = new_optimizer()
    schedule = make(optimizer)
    before, lr = schedule.state_dict(), optimizer.lr
    with pytest.raises(CheckpointError, match=r"no such numbers: .*base_lr"):
        schedule.load_state_dict(before | {"base_lr": rate})
    assert schedule.state_dict() == before and optimizer.lr == lr


def test_settings_out_of_range_are_refused_and_the_optimizer_left_alone():
    optimizer = new_optimizer()
    for make in (
        lambda: optim.LinearWarmup(optimizer, warmup_steps=0),
        lambda: optim.Cosine(optimizer, total_steps=5, warmup_steps=5),
        lambda: optim.InverseSqrt(optimizer, warmup_steps=0),
        lambda: optim.Plateau(optimizer, factor=1.0),
    ):
        with pytest.raises(ValueError, match="rule: a number, "):
            make()
    assert optimizer.lr == 0.4
