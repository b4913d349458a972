import errno
import json
import os
import resource

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dynbatch import optim, random
from dynbatch.errors import CheckpointError, DtypeError
from dynbatch.kernels.runtime.transfer import to_device
from dynbatch.models.module import Module
from dynbatch.parameter import Parameter
from dynbatch.row_sparse import RowSparse
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

    monkeypatch.setattr("safetensors.numpy.save_file", half)
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
        whole = optimizer.state_dict()
        optimizer.state_dict = lambda: {x: a for x, a in whole.items() if "square_sum" not in x}
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
        ("a folder", "a folder, not a file"),
        ("foreign safetensors", "not a checkpoint of dynbatch .format 'pt'"),
        ("no metadata", "not a checkpoint of dynbatch"),
        ("later version", "version '99', this dynbatch reads 1"),
        ("other shape", r"table: model \(7, 3\), state \(7, 4\)"),
        ("other names", r"(?s)missing: \['bias'\].*unknown: \['head'\]"),
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


def metadata(path):
    with safe_open(path, framework="np") as file:
        return file.metadata()


def old(path):
    """Write the file anew in the first format: three keys, and no digests."""
    content = json.loads(metadata(path)["dynbatch-checkpoint"])
    state = json.dumps(content["state"])
    save_file(
        load_file(path), path, {"format": "dynbatch-checkpoint", "version": "1", "state": state}
    )


def edited(path, change, is_old=False):
    """Change the saved state as a faulty program would, with whatever digests belong to it."""
    from dynbatch.train.checkpoint_file import metadata_of

    tensors = load_file(path)
    state = json.loads(metadata(path)["dynbatch-checkpoint"])["state"]
    change(state)
    save_file(tensors, path, metadata_of(state, tensors))
    if is_old:
        old(path)


@pytest.mark.parametrize("name", ["model/table", "model/bias", "optimizer/bias/square_sum"])
def test_one_flipped_bit_of_a_tensor_is_found_and_the_tensor_named(tmp_path, name):
    path = tmp_path / "c"
    save_checkpoint(path, *started(7)[:3])
    value = load_file(path)[name].tobytes()
    raw = bytearray(path.read_bytes())
    raw[raw.index(value) + len(value) // 2] ^= 4
    path.write_bytes(raw)
    model, optimizer, schedule, _ = started()
    before = everything(model, optimizer, schedule)
    with pytest.raises(CheckpointError, match=f"'{name}' is not what was written") as caught:
        load_checkpoint(path, model, optimizer, schedule)
    assert "fix: take another copy" in str(caught.value)
    assert same(everything(model, optimizer, schedule), before)


def test_tensors_that_have_changed_places_are_found(tmp_path):
    path = tmp_path / "c"
    model = TwoLayers()
    save_checkpoint(path, model, optim.AdamW(model))
    tensors = load_file(path) | {"model/bias": model.table.value[0].copy()}
    save_file(tensors, path, metadata(path))
    with pytest.raises(CheckpointError, match="'model/bias' is not what was written"):
        load_checkpoint(path, TwoLayers())


@pytest.mark.parametrize("change", ["missing", "added"])
def test_tensors_that_were_not_written_together_are_found(tmp_path, change):
    path = tmp_path / "c"
    save_checkpoint(path, TwoLayers())
    tensors = load_file(path)
    if change == "missing":
        del tensors["model/bias"]
    else:
        tensors["model/more"] = np.ones(3, np.float32)
    save_file(tensors, path, metadata(path))
    for read in (read_checkpoint, lambda path: load_checkpoint(path, TwoLayers())):
        with pytest.raises(CheckpointError, match="its tensors are not those that were written"):
            read(path)


def test_a_changed_number_of_the_metadata_is_found_without_reading_tensors(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, TwoLayers(), step=123456)
    path.write_bytes(path.read_bytes().replace(b"123456", b"123457"))
    with pytest.raises(CheckpointError, match="its metadata is not what was written"):
        read_checkpoint(path)


def test_equal_runs_write_equal_bytes(tmp_path):
    extra = {"words": ["a", "ß"], "sizes": {"hidden": 3, "embed": 4}, 1: None, "loss": np.inf}
    for name, items in (("one", extra.items()), ("two", reversed(extra.items()))):
        model, optimizer, schedule, rng = started()
        settings = dict(step=3, random_state=rng, extra=dict(items))
        save_checkpoint(tmp_path / name, model, optimizer, schedule, **settings)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert list(metadata(tmp_path / "one")) == ["dynbatch-checkpoint"]
    assert read_checkpoint(tmp_path / "one").extra["loss"] == np.inf


def test_a_checkpoint_of_the_first_format_is_still_read(tmp_path):
    path = tmp_path / "c"
    model, optimizer, schedule, rng = started(7)
    save_checkpoint(path, model, optimizer, schedule, 3, random_state=rng, extra={"a": 1})
    info = read_checkpoint(path)
    old(path)
    resumed = started(seed=5)
    assert load_checkpoint(path, *resumed[:3]) == info
    assert same(everything(*resumed[:3]), everything(model, optimizer, schedule))


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("step"), "no 'step'"),
        (lambda state: state.update(step=-3), "-3 for 'step'"),
        (lambda state: state.update(step="3"), "'3' for 'step'"),
        (lambda state: state.update(position=True), "True for 'position'"),
        (lambda state: state.update(epoch=10**300), "a large number for 'epoch'"),
        (lambda state: state.update(extra=[1]), r"\[1\] for 'extra'"),
        (lambda state: state.update(graph_random={"seed": 1}), "for 'graph_random'"),
        (lambda state: state.update(optimizer=3), "3 for 'optimizer'"),
        (lambda state: state.update(schedule_state="x"), "'x' for 'schedule_state'"),
        (lambda state: state["schedule_state"].update(base_lr="x"), "no such numbers: .*base_lr"),
        (lambda state: state["schedule_state"].update(num_steps=1.5), "no such numbers: .*num_s"),
        (lambda state: state["random_state"]["state"].update(inc=-1), "generator is damaged"),
        (lambda state: state["random_state"].pop("state"), "generator is damaged"),
        (lambda state: state.update(random_state={}), "holds None, not PCG64"),
    ],
)
def test_metadata_of_the_wrong_kind_is_one_error_and_nothing_changes(
    tmp_path, change, says, is_old
):
    path = tmp_path / "c"
    model, optimizer, schedule, rng = started(7)
    save_checkpoint(path, model, optimizer, schedule, random_state=rng)
    edited(path, change, is_old)
    model, optimizer, schedule, rng = started()
    before, drawn = everything(model, optimizer, schedule), rng.bit_generator.state
    with pytest.raises(CheckpointError, match=f"(?s){says}") as caught:
        read_checkpoint(path).restore_random_state(rng)
        load_checkpoint(path, model, optimizer, schedule)
    assert "fix:" in str(caught.value)
    if "generator" in says or "PCG64" in says:
        assert rng.bit_generator.state == drawn
    assert same(everything(model, optimizer, schedule), before)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"step": NaN', "[" * 100_000, "9" * 5000, ""])
@pytest.mark.parametrize("is_old", [False, True])
def test_metadata_that_is_no_json_object_is_one_error(tmp_path, text, is_old):
    path = tmp_path / "c"
    given = {"format": "dynbatch-checkpoint", "version": "1", "state": text}
    save_file({}, path, given if is_old else {"dynbatch-checkpoint": text})
    with pytest.raises(CheckpointError, match="its metadata is not JSON"):
        read_checkpoint(path)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "I32", "C64"])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_tensor_of_a_foreign_dtype_is_one_error(tmp_path, dtype, is_old):
    path = tmp_path / "c"
    size = {"BF16": 2, "I32": 4, "C64": 8}.get(dtype, 1)

    class One(Module):
        def __init__(self):
            self.weight = Parameter(np.ones(16 // size, np.float32))

    save_checkpoint(path, One())
    tensors, content = {"model/weight": np.ones(16, np.uint8)}, metadata(path)
    save_file(tensors, path, content)
    if is_old:
        old(path)
    raw = path.read_bytes()
    wanted = f'"{dtype}","shape":[{16 // size}]'.encode()
    spoiled = raw[8:].replace(b'"U8","shape":[16]', wanted)
    length = int.from_bytes(raw[:8], "little") + len(spoiled) - len(raw[8:])
    path.write_bytes(length.to_bytes(8, "little") + spoiled)
    with pytest.raises(CheckpointError, match=f"'model/weight' is of dtype {dtype}"):
        load_checkpoint(path, One())
