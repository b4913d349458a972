import errno
import os
import resource

import numpy as np
import pytest
from safetensors.numpy import save_file

from dynbatch import optim, random
from dynbatch.errors import CheckpointError, DtypeError
from dynbatch.kernels.transfer import to_device
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter, RowSparse
from dynbatch.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint


class TwoLayers(Module):
    def __init__(self, seed=0, width=3):
        rng = np.random.default_rng(seed)
        self.table = Parameter(rng.standard_normal((7, width)).astype(np.float32))
        self.bias = Parameter(rng.standard_normal(width).astype(np.float32))


def train(model, optimizer, schedule, rng, steps):
    for _ in range(steps):
        rows = np.sort(rng.choice(7, 2, replace=False))
        values, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3), 3))
        model.table.grad = RowSparse(rows, values, (7, 3)).to(model.table.device)
        model.bias.grad = to_device(bias, model.bias.device)
        optimizer.step()
        schedule.step()


def started(seed=0, steps=3, device="cpu"):
    model = TwoLayers(seed).to(device)
    optimizer = optim.AdamW(model, lr=0.01)
    schedule = optim.InverseSqrt(optimizer, warmup_steps=4)
    rng = np.random.default_rng(seed)
    train(model, optimizer, schedule, rng, steps)
    return model, optimizer, schedule, rng


def everything(model, optimizer, schedule):
    state = {f"model/{k}": v for k, v in model.state_dict().items()}
    state |= {f"optimizer/{k}": v for k, v in optimizer.state_dict().items()}
    return state | {f"schedule/{k}": np.array(v) for k, v in schedule.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_loaded_run_goes_on_to_the_same_bits(tmp_path):
    model, optimizer, schedule, rng = started()
    path = tmp_path / "run.safetensors"
    extra = {"words": ["a", "ß"], "best": np.float32(0.5), "sizes": np.arange(2)}
    save_checkpoint(
        path, model, optimizer, schedule, 3, epoch=1, position=2, random_state=rng, extra=extra
    )
    train(model, optimizer, schedule, rng, 3)

    resumed, other, again, generator = started(seed=5, steps=1)
    info = load_checkpoint(path, resumed, other, again)
    info.restore_random_state(generator)
    train(resumed, other, again, generator, 3)
    assert same(everything(model, optimizer, schedule), everything(resumed, other, again))
    assert other.lr == optimizer.lr
    assert (info.step, info.epoch, info.position) == (3, 1, 2)
    assert info.extra == {"words": ["a", "ß"], "best": 0.5, "sizes": [0, 1]}


@pytest.mark.parametrize(("source", "target"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda",) * 2])
def test_checkpoint_is_the_same_whatever_device_it_comes_from(tmp_path, cuda, source, target):
    model, optimizer, schedule, rng = started(device=source)
    extra = {"words": ["a", "ß"]}
    settings = dict(step=3, epoch=1, random_state=rng, extra=extra)
    save_checkpoint(tmp_path / "one", model, optimizer, schedule, **settings)

    other, on_other, again, generator = started(seed=5, steps=1, device=target)
    arrays = [parameter.value for parameter in other.parameters()]
    info = load_checkpoint(tmp_path / "one", other, on_other, again)
    info.restore_random_state(generator)
    kept = [parameter.value for parameter in other.parameters()]
    assert all(one is two for one, two in zip(arrays, kept, strict=True))
    assert same(everything(model, optimizer, schedule), everything(other, on_other, again))

    settings["random_state"] = generator
    save_checkpoint(tmp_path / "two", other, on_other, again, **settings)
    back = started(seed=6, steps=2, device=source)
    info = load_checkpoint(tmp_path / "two", *back[:3])
    info.restore_random_state(back[3])
    assert same(everything(model, optimizer, schedule), everything(*back[:3]))
    assert back[3].bit_generator.state == rng.bit_generator.state and info.extra == extra


def test_graph_seeds_go_on_where_they_were_saved(tmp_path):
    before = random.get_state()
    try:
        random.seed(17)
        random.next_seed()
        save_checkpoint(tmp_path / "c", TwoLayers())
        expected = random.next_seed()
        random.seed(0)
        info = load_checkpoint(tmp_path / "c", TwoLayers())
        assert random.get_state() == {"seed": 0, "count": 0}
        info.restore_random_state()
        assert random.next_seed() == expected
    finally:
        random.set_state(before)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_every_generator_of_numpy_is_kept(tmp_path, kind):
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.standard_normal(5)
    save_checkpoint(tmp_path / "c", TwoLayers(), random_state=generator)
    expected = generator.standard_normal(5)
    other = np.random.Generator(getattr(np.random, kind)(4))
    read_checkpoint(tmp_path / "c").restore_random_state(other)
    assert np.array_equal(other.standard_normal(5), expected)


def test_generator_of_another_kind_or_never_saved_is_refused(tmp_path):
    save_checkpoint(tmp_path / "none", TwoLayers())
    save_checkpoint(tmp_path / "one", TwoLayers(), random_state=np.random.default_rng(0))
    generator = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(CheckpointError, match="holds no generator, not MT19937"):
        read_checkpoint(tmp_path / "none").restore_random_state(generator)
    with pytest.raises(CheckpointError, match="holds PCG64, not MT19937"):
        read_checkpoint(tmp_path / "one").restore_random_state(generator)


def test_model_alone_is_loaded_from_a_full_checkpoint(tmp_path):
    model, optimizer, schedule, _ = started()
    save_checkpoint(tmp_path / "c", model, optimizer, schedule)
    other = TwoLayers(seed=4)
    load_checkpoint(tmp_path / "c", other)
    assert same(model.state_dict(), other.state_dict())


def test_disk_that_fills_mid_write_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch):
    model, optimizer, schedule, _ = started()
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, model, optimizer, schedule, step=1)
    old = path.read_bytes()

    def half(tensors, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half a checkp")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dynbatch.train.checkpoint.save_file", half)
    with pytest.raises(CheckpointError, match=r"(?s)already there is unchanged.*No space left"):
        save_checkpoint(path, model, optimizer, schedule, step=2)
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["run.safetensors"]


def test_file_size_limit_of_the_system_is_reported_the_same_way(tmp_path):
    class Large(Module):
        def __init__(self):
            self.weight = Parameter(np.zeros(1 << 20, np.float32))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"(?s)nothing was written.*too large"):
            save_checkpoint(tmp_path / "c", Large())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_to_flush_or_rename_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch, call):
    path = tmp_path / "c"
    save_checkpoint(path, TwoLayers())
    old = path.read_bytes()

    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save_checkpoint(path, TwoLayers(seed=1))
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["c"]


def test_extra_that_json_cannot_hold_is_refused_before_the_file_is_touched(tmp_path):
    with pytest.raises(DtypeError, match="Parameter cannot be kept"):
        save_checkpoint(tmp_path / "c", TwoLayers(), extra={"p": Parameter(np.ones(1))})
    assert os.listdir(tmp_path) == []


def spoiled(path, case):
    raw = path.read_bytes()
    other = TwoLayers(width=4)
    if case == "truncated":
        path.write_bytes(raw[:-7])
    elif case == "cut in the header":
        path.write_bytes(raw[:40])
    elif case == "empty":
        path.write_bytes(b"")
    elif case == "text":
        path.write_bytes(b"# not a checkpoint at all\n" * 9)
    elif case == "missing":
        path.unlink()
    elif case == "a folder":
        path.unlink()
        path.mkdir()
    elif case == "foreign safetensors":
        save_file({"weight": np.ones(3)}, path, {"format": "pt"})
    elif case == "no metadata":
        save_file({"weight": np.ones(3)}, path)
    elif case == "later version":
        save_file({}, path, {"format": "dynbatch-checkpoint", "version": "99"})
    elif case == "other shape":
        save_checkpoint(path, other, optim.AdamW(other), step=3)
    elif case == "other names":
        other.head, other.bias = other.bias, None
        save_checkpoint(path, other)
    elif case == "no optimizer":
        save_checkpoint(path, TwoLayers())
    elif case == "other optimizer":
        model = TwoLayers()
        save_checkpoint(path, model, optim.SGD(model))
    elif case == "other optimizer state":
        model, optimizer, schedule, _ = started(7)
        optimizer.slots = ("gradient_sum",)
        save_checkpoint(path, model, optimizer, schedule)
    elif case == "no schedule":
        model, optimizer, _, _ = started(7)
        save_checkpoint(path, model, optimizer)
    elif case == "other schedule":
        model, optimizer, _, _ = started(7)
        save_checkpoint(path, model, optimizer, optim.Plateau(optimizer))
    elif case == "other schedule state":
        model, optimizer, schedule, _ = started(7)
        schedule.state_dict = lambda: {"base_lr": 1.0, "num_updates": 3}
        save_checkpoint(path, model, optimizer, schedule)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("truncated", "not a whole safetensors file"),
        ("cut in the header", "not a whole safetensors file"),
        ("empty", "not a whole safetensors file"),
        ("text", "not a whole safetensors file"),
        ("missing", "no such file"),
        ("a folder", "no such file"),
        ("foreign safetensors", "not a checkpoint of dynbatch .format 'pt'"),
        ("no metadata", "not a checkpoint of dynbatch"),
        ("later version", "version '99', this dynbatch reads 1"),
        ("other shape", r"table: model \(7, 3\), file \(7, 4\)"),
        ("other names", r"(?s)missing in the file: \['bias'\].*unknown to the model: \['head'\]"),
        ("no optimizer", "saved with no optimizer, given AdamW"),
        ("other optimizer", "saved with SGD, given AdamW"),
        ("other optimizer state", r"missing: \['bias/square_sum', 'table/square_sum'\]"),
        ("no schedule", "saved with no schedule, given InverseSqrt"),
        ("other schedule", "saved with Plateau, given InverseSqrt"),
        ("other schedule state", r"(?s)does not fit this schedule.*got: .*'num_updates'"),
    ],
)
def test_file_that_does_not_fit_is_refused_and_nothing_changes(tmp_path, case, says):
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, *started(7)[:3])
    spoiled(path, case)
    model, optimizer, schedule, _ = started()
    before, lr = everything(model, optimizer, schedule), optimizer.lr
    with pytest.raises(CheckpointError, match=says) as caught:
        load_checkpoint(path, model, optimizer, schedule)
    assert "fix:" in str(caught.value)
    assert same(everything(model, optimizer, schedule), before) and optimizer.lr == lr
