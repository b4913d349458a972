"""Twenty steps of every algorithm beside PyTorch's, dense and row-sparse gradients."""

from inspect import signature

import numpy as np
import pytest

from dynbatch import backend, optim
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
from tests.marks import exhaustive
from tests.optim.settings import SETTINGS, label

torch = pytest.importorskip("torch", reason="parity needs PyTorch")

OF_TORCH = [pair for pair in SETTINGS if hasattr(torch.optim, pair[0])]
every_setting = pytest.mark.parametrize(
    ("name", "settings"), OF_TORCH, ids=[label(*pair) for pair in OF_TORCH]
)
AT_ONCE = [pair for pair in OF_TORCH if pair[0] != "ASGD"]
"""Optimizers whose changed learning rate acts at once in PyTorch too; ASGD's does a step later."""
at_once = pytest.mark.parametrize(
    ("name", "settings"), AT_ONCE, ids=[label(*pair) for pair in AT_ONCE]
)
SHAPES = [(11, 6), (6,)]


@pytest.fixture(autouse=True)
def scalars_are_float64():
    """PyTorch keeps NAdam's product of numbers in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@every_setting
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), exhaustive("float32", 1e-5)])
def test_twenty_steps_equal_pytorch(name, settings, sparse, dtype, tolerance, device):
    rng = np.random.default_rng(0)
    ours = [Parameter(rng.standard_normal(shape).astype(dtype)).to(device) for shape in SHAPES]
    theirs = [torch.tensor(p.numpy(), requires_grad=True) for p in ours]
    where = backend.device(device)
    optimizer = getattr(optim, name)(ours, **settings)
    reference = getattr(torch.optim, name)(theirs, **settings)
    for step in range(20):
        gradients = [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]
        rows = np.flatnonzero(rng.random(11) < 0.4)
        table = RowSparse(rows, gradients[0][rows], (11, 6))
        ours[0].grad = table.to(where) if sparse else to_device(gradients[0], where)
        theirs[0].grad = torch.tensor(table.dense() if sparse else gradients[0])
        # The bias misses every third gradient: both sides must leave its state alone.
        ours[1].grad = to_device(gradients[1], where) if step % 3 else None
        theirs[1].grad = torch.tensor(gradients[1]) if step % 3 else None
        optimizer.step()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.value.dtype == dtype and mine.device == where
        np.testing.assert_allclose(
            mine.numpy(), other.detach().numpy(), rtol=tolerance, atol=tolerance
        )


def test_twenty_steps_of_the_rows_that_were_read_equal_pytorch(device):
    rng = np.random.default_rng(0)
    ours = Parameter(rng.standard_normal((11, 6))).to(device)
    theirs = torch.tensor(ours.numpy(), requires_grad=True)
    settings = dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, maximize=True)
    optimizer = optim.SparseAdam([ours], **settings)
    reference = torch.optim.SparseAdam([theirs], **settings)
    for _ in range(20):
        rows = np.flatnonzero(rng.random(11) < 0.4)
        table = RowSparse(rows, rng.standard_normal((rows.size, 6)), (11, 6))
        ours.grad = table.to(backend.device(device))
        theirs.grad = torch.sparse_coo_tensor(
            rows[None], table.values, table.shape, check_invariants=True
        )
        before = ours.numpy()
        optimizer.step()
        reference.step()
        stayed = np.delete(np.arange(11), rows)
        np.testing.assert_array_equal(ours.numpy()[stayed], before[stayed])
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-10)


@at_once
def test_twenty_steps_of_groups_equal_pytorch(name, settings, device):
    rng = np.random.default_rng(0)
    ours = [Parameter(rng.standard_normal(shape)).to(device) for shape in [*SHAPES, (3,)]]
    theirs = [torch.tensor(p.numpy(), requires_grad=True) for p in ours]
    own = dict(AdamW=dict(betas=(0.7, 0.9)), SGD=dict(momentum=0.5), RMSprop=dict(alpha=0.8))

    def decay(number):
        decays = "weight_decay" in signature(getattr(optim, name)).parameters
        return {"weight_decay": number} if decays else {}

    def groups(parameters):
        table, bias, gain = parameters
        return [
            {"params": [table]} | decay(0.2) | own.get(name, {}),
            {"params": [bias], "lr": 0.03} | decay(0.0),
            {"params": [gain]},
        ]

    optimizer = getattr(optim, name)(groups(ours), **settings)
    reference = getattr(torch.optim, name)(groups(theirs), **settings)
    warm_up = optim.LinearWarmup(optimizer, 8)
    reference_warm_up = torch.optim.lr_scheduler.LinearLR(reference, 1 / 8, total_iters=7)
    for _ in range(20):
        for mine, other in zip(ours, theirs, strict=True):
            gradient = rng.standard_normal(mine.shape)
            mine.grad = to_device(gradient, backend.device(device))
            other.grad = torch.tensor(gradient)
        optimizer.step()
        reference.step()
        rates = [group["lr"] for group in reference.param_groups]
        assert [group.lr for group in optimizer.groups] == pytest.approx(rates, rel=1e-12)
        warm_up.step()
        reference_warm_up.step()
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-10, atol=1e-10)


@at_once
def test_a_changed_learning_rate_acts_as_in_pytorch(name, settings):
    rng = np.random.default_rng(1)
    mine = Parameter(rng.standard_normal(5))
    other = torch.tensor(mine.value.copy(), requires_grad=True)
    optimizer = getattr(optim, name)([mine], **settings)
    reference = getattr(torch.optim, name)([other], **settings)
    for lr in (0.1, 0.01, 0.0, 0.05):
        optimizer.lr = reference.param_groups[0]["lr"] = lr
        mine.grad = rng.standard_normal(5)
        other.grad = torch.tensor(mine.grad)
        optimizer.step()
        reference.step()
    np.testing.assert_allclose(mine.value, other.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_defaults_are_those_of_pytorch():
    for name in dict.fromkeys([name for name, _ in OF_TORCH]):
        theirs = getattr(torch.optim, name)([torch.zeros(1)]).defaults
        made = getattr(optim, name)([Parameter(np.zeros(1))])
        ours = vars(made) | {"lr": made.lr}
        shared = ours.keys() & theirs.keys()
        assert shared == theirs.keys() & signature(getattr(optim, name)).parameters.keys() >= {"lr"}
        assert {k: ours[k] for k in shared} == {k: theirs[k] for k in shared}
