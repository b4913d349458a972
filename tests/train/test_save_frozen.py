"""Checkpoints of trained parameters alone: their size, a run resumed from one, what is refused."""

import os

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch.errors import ArgumentError, CheckpointError
from dynbatch.models.pretrained import GPT2, GPT2Config, load_pretrained

TEXTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7], [9, 3, 2, 3], [8, 4, 6], [2, 6, 4, 3]]


def base(seed=0):
    sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return GPT2(GPT2Config(vocab_size=200, **sizes), rng=seed)


def run(path, model=None, **settings):
    db.seed(3)
    model = base() if model is None else model
    models.add_adapter(model, models.LoraConfig(r=2, lora_dropout=0.1), rng=1)
    return train.Trainer(
        model, optim.AdamW(model, lr=0.01), lambda graph, model, ids: model.loss(graph, ids),
        train.SentenceBatches(TEXTS, 2, seed=0), checkpoint_path=path, save_frozen=False,
        random_state=np.random.default_rng(7), show_progress=False, **settings,
    )  # fmt: skip


def trained(trainer):
    return {n: p.numpy() for n, p in trainer.model.named_parameters() if not p.frozen}


def test_a_run_goes_on_to_the_same_bits_from_trained_parameters_alone(tmp_path):
    whole = run(tmp_path / "whole.safetensors")
    whole.fit(4)
    run(tmp_path / "run.safetensors").fit(2)
    again = run(tmp_path / "run.safetensors")
    assert again.resume()
    again.fit(4)
    one, other = trained(whole), trained(again)
    assert len(one) == 2 and all([np.array_equal(one[name], other[name]) for name in one])
    state = sum([array.nbytes for array in one.values()])
    size = os.path.getsize(tmp_path / "run.safetensors")
    train.save_checkpoint(tmp_path / "all.safetensors", whole.model, whole.optimizer)
    assert 3 * state < size < 3 * state + 6_000  # with two moments of AdamW, and scales
    assert os.path.getsize(tmp_path / "all.safetensors") > size + 4 * 200 * 8


def test_other_frozen_values_are_refused_and_nothing_is_loaded(tmp_path):
    path = tmp_path / "run.safetensors"
    run(path).fit(1)
    other = run(path, base(seed=1))
    before = trained(other)
    with pytest.raises(CheckpointError, match="trained parameters alone, and 8 others are not"):
        other.resume()
    after = trained(other)
    assert all([np.array_equal(before[name], after[name]) for name in before])
    with pytest.raises(CheckpointError, match="saved from another model"):
        train.load_checkpoint(path, base())  # without its adapter
    with pytest.raises(CheckpointError, match=r"(?s)trained parameters alone.*load that model"):
        load_pretrained(path)


def test_a_whole_checkpoint_of_an_adapted_model_describes_itself(tmp_path):
    trainer = run(tmp_path / "run.safetensors")
    trainer.fit(1)
    train.save_checkpoint(tmp_path / "all.safetensors", trainer.model)
    model = load_pretrained(tmp_path / "all.safetensors")
    one, other = trainer.model.state_dict(), model.state_dict()
    assert one.keys() == other.keys()
    assert all([np.array_equal(one[name], other[name]) for name in one])
    models.merge_adapter(trainer.model)
    train.save_checkpoint(tmp_path / "merged.safetensors", trainer.model)
    assert load_pretrained(tmp_path / "merged.safetensors").state_dict().keys() == {
        name for name in one if "lora" not in name
    }


@pytest.mark.parametrize("others", [{"lora_alpha": 4}, {"use_rslora": True}])
def test_an_adapter_of_another_scale_is_refused_and_nothing_is_loaded(others, tmp_path):
    path, wanted, other = tmp_path / "run.safetensors", base(), base()
    models.add_adapter(wanted, models.LoraConfig(r=2, lora_alpha=8), rng=1)
    train.save_checkpoint(path, wanted, save_frozen=False)
    models.add_adapter(other, models.LoraConfig(**{"r": 2, "lora_alpha": 8} | others), rng=2)
    before = other.state_dict()
    with pytest.raises(CheckpointError, match=r"(?s)scale [\d.]+, saved 4\.0.*α / r"):
        train.load_checkpoint(path, other)
    assert all([np.array_equal(before[name], value) for name, value in other.state_dict().items()])


def test_weights_that_an_adapter_is_merged_into_are_written(tmp_path):
    path, model = tmp_path / "merged.safetensors", base()
    models.add_adapter(model, models.LoraConfig(r=2, init_lora_weights=False), rng=1)
    models.merge_adapter(model)
    train.save_checkpoint(path, model, save_frozen=False)
    again = base()
    train.load_checkpoint(path, again)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value)
    with pytest.raises(CheckpointError, match=r"(?s)is merged into this GPT2.*unmerge_adapter"):
        train.load_checkpoint(path, model)  # whose values unmerging would undo
    models.remove_adapter(model)
    train.load_checkpoint(path, model)
    with pytest.raises(ArgumentError, match="all 16 parameters of this GPT2 are frozen"):
        train.save_checkpoint(tmp_path / "none.safetensors", model, save_frozen=False)
    assert not (tmp_path / "none.safetensors").exists()


def test_an_optimizer_from_before_the_adapter_is_refused():
    model = base()
    optimizer = optim.AdamW(model, lr=0.01)
    models.add_adapter(model)
    with pytest.raises(ArgumentError, match="all parameters of the optimizer are frozen"):
        train.Trainer(
            model, optimizer, lambda graph, model, ids: model.loss(graph, ids),
            train.SentenceBatches(TEXTS, 2, seed=0),
        )  # fmt: skip


def test_a_mean_of_what_is_left_out_is_refused(tmp_path):
    model = base()
    models.freeze(model, "word.weight")
    average = optim.Average(model)
    average.update()
    with pytest.raises(ArgumentError, match=r"of frozen parameters, such as 'word\.weight'"):
        train.save_checkpoint(tmp_path / "a.safetensors", model, average=average, save_frozen=False)
    average = optim.Average([pair for pair in model.named_parameters() if not pair[1].frozen])
    average.update()
    train.save_checkpoint(tmp_path / "a.safetensors", model, average=average, save_frozen=False)
    train.load_checkpoint(tmp_path / "a.safetensors", model, average=average)
