import numpy as np
import pytest

from dynbatch import models, optim
from dynbatch.errors import CheckpointError
from dynbatch.kernels.cuda.runtime.queue import queue
from dynbatch.kernels.runtime.transfer import to_device


class Network(models.Module):
    def __init__(self):
        self.encoder = models.Linear(3, 4, rng=0)
        self.decoder = models.Linear(4, 2, rng=1)
        self.norm = models.LayerNorm(2)

    def groups(self):
        pairs = list(self.named_parameters())
        return [{"params": pairs[:2], "lr": 0.1}, {"params": pairs[2:], "weight_decay": 0.3}]


def step(model, optimizer, seed):
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():
        gradient = rng.standard_normal(parameter.shape).astype(np.float32)
        parameter.grad = to_device(gradient, parameter.device)
    optimizer.step()


def test_a_group_takes_what_it_does_not_say_from_the_optimizer():
    model = Network()
    optimizer = optim.AdamW(model.groups(), 0.02, (0.8, 0.9), weight_decay=0.2)
    first, second = optimizer.groups
    assert (first.lr, first.betas, first.weight_decay) == (0.1, (0.8, 0.9), 0.2)
    assert (second.lr, second.betas, second.weight_decay) == (0.02, (0.8, 0.9), 0.3)
    assert [name for name, _ in optimizer.named_parameters()] == list(model.state_dict())
    assert repr(optimizer) == "AdamW(6 parameters in 2 groups, lr=0.02)"
    plain = optim.AdamW(model)
    assert list(plain.groups) == [plain]


def test_rates_of_groups_keep_their_proportion_to_that_of_the_optimizer():
    model = Network()
    optimizer = optim.SGD(model.groups(), lr=0.4)
    schedule = optim.Cosine(optimizer, total_steps=3)
    found = []
    for _ in range(5):
        found.append([group.lr / 0.4 for group in optimizer.groups])
        schedule.step()
    assert found[0] == [0.25, 1.0] and found[3] == found[4] == [0.0, 0.0]
    assert [a * 4 for a, _ in found] == pytest.approx([b for _, b in found])
    optimizer.lr = 0.8
    assert [group.lr for group in optimizer.groups] == [0.2, 0.8]
    every = optim.SGD([group | {"lr": 0.1 + k} for k, group in enumerate(model.groups())])
    assert every.lr == 0.1


def test_models_may_be_groups_and_their_names_are_told_apart():
    model = Network()
    optimizer = optim.Adam([{"params": model.encoder}, {"params": model.decoder, "lr": 0.5}])
    names = [name for name, _ in optimizer.named_parameters()]
    assert len(set(names)) == 4 and names[:2] == ["weight", "bias"]


def test_only_matrices_decay_in_one_line():
    model = Network()
    optimizer = optim.AdamW(optim.decay_groups(model, 0.1), lr=0.01)
    decays = {
        name: group.weight_decay
        for group in optimizer.groups
        for name, _ in group.named_parameters()
    }
    assert decays == {
        name: 0.1 if p.value.ndim == 2 else 0.0 for name, p in model.named_parameters()
    }
    vectors = models.LayerNorm(3)
    assert [len(group["params"]) for group in optim.decay_groups(vectors, 0.1)] == [2]


def test_loaded_groups_go_on_to_the_same_bits():
    whole, resumed = Network(), Network()
    optimizer = optim.Adam(whole.groups(), lr=0.05)
    optimizer.groups[0].lr = 0.7  # by hand, which the state keeps
    for seed in range(3):
        step(whole, optimizer, seed)
    resumed.load_state_dict(whole.state_dict())
    other = optim.Adam(resumed.groups(), lr=9.0)
    other.load_state_dict(optimizer.state_dict())
    assert [group.lr for group in other.groups] == [0.7, 0.05]
    for model, its in ((whole, optimizer), (resumed, other)):
        step(model, its, 7)
    ours, theirs = whole.state_dict(), resumed.state_dict()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (lambda m: m, "'encoder.bias' was in group 0, and is in no group"),
        (lambda m: m.groups()[::-1], "'decoder.weight' was in group 1, and is in group 0"),
        (lambda m: m.groups()[:1], "'decoder.bias' was in group 1, and is in no group"),
    ],
)
def test_a_state_of_other_groups_is_refused_whole(groups, says):
    model = Network()
    optimizer = optim.Adam(model.groups())
    step(model, optimizer, 0)
    other = optim.Adam(groups(model), lr=0.25)
    before = [other.lr, *[group.lr for group in other.groups]]
    with pytest.raises(CheckpointError, match=f"saved with other groups .*\n  {says}"):
        other.load_state_dict(optimizer.state_dict())
    assert [other.lr, *[group.lr for group in other.groups]] == before
    with pytest.raises(CheckpointError, match="the state's groups/1/lr is nan"):
        optimizer.load_state_dict(optimizer.state_dict() | {"groups/1/lr": np.array(np.nan)})
    plain = optim.Adam(model)
    with pytest.raises(
        CheckpointError, match=r"'encoder\.weight' was in no group, and is in group"
    ):
        optimizer.load_state_dict(plain.state_dict())


def test_groups_that_cannot_be_meant_are_refused_by_number():
    model = Network()
    weight = model.encoder.weight
    for parameters, says in [
        ([{"params": model, "momentun": 0.9}], "there is no argument 'momentun'"),
        ([{"params": model, "learning_rate": 0.9}], "lr= is its name here"),
        ([{"params": model, "lr": -1.0}], "lr is -1.0"),
        (
            [{"params": [weight]}, {"params": model}],
            "'encoder.weight' is in group 0 and in group 1",
        ),
        ([{"params": model}, weight], "group 1 of the parameters a Parameter"),
        ([{"lr": 0.1}], r"group 0 of the parameters has the keys \['lr'\]"),
        ({"params": model}, "put the dict into a list"),
        ([{"params": []}], "there are no parameters to optimize"),
    ]:
        with pytest.raises(ValueError, match=says):
            optim.SGD(parameters, lr=0.1)
    with pytest.raises(ValueError, match="rates of groups keep their proportion"):
        optim.SGD(model.groups(), lr=0.0)


def test_groups_are_stepped_in_one_launch_on_a_gpu(cuda):
    model = Network().to("cuda")
    optimizer = optim.Adam(model.groups())
    step(model, optimizer, 0)
    for parameter in model.parameters():
        parameter.grad = to_device(np.ones(parameter.shape, np.float32), parameter.device)
    before = queue().launches
    optimizer.step()
    assert queue().launches == before + 1


def test_weights_of_convolutions_decay_and_none_is_left_out():
    model = models.Sequential(models.Conv2d(2, 3, 2), models.Conv1d(2, 3, 4), models.LayerNorm(3))
    decaying, others = optim.decay_groups(model, 0.1)
    assert [name for name, _ in decaying["params"]] == ["0.weight", "1.weight"]
    assert [name for name, _ in others["params"]] == ["0.bias", "1.bias", "2.weight", "2.bias"]
