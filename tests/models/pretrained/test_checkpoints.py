"""Places in which `load_pretrained` finds a model."""

import pytest

from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained import GPT2, GPT2Config, load_pretrained
from dynbatch.train import save_checkpoint

CONFIG = GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1)


def test_the_folder_of_a_run_gives_its_best_model_or_else_its_last(tmp_path):
    last, best = GPT2(CONFIG, rng=1), GPT2(CONFIG, rng=2)
    save_checkpoint(tmp_path / "model.safetensors", last)
    found = load_pretrained(tmp_path)
    assert (found.word.weight.value == last.word.weight.value).all()
    save_checkpoint(tmp_path / "model.best.safetensors", best)
    found = load_pretrained(tmp_path)
    assert (found.word.weight.value == best.word.weight.value).all()


def test_a_name_of_the_hub_is_told_how_it_comes_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for load in (load_pretrained, GPT2.from_pretrained):
        with pytest.raises(CheckpointError, match=r"no such file or folder(.|\n)*hf download"):
            load("openai-community/gpt2")


def test_a_folder_without_a_model_is_told_what_it_lacks(tmp_path):
    with pytest.raises(CheckpointError, match=r"fix:  give a folder that has config\.json"):
        load_pretrained(tmp_path)


def test_a_run_that_a_class_is_to_read_is_told_the_function_that_reads_it(tmp_path):
    model = GPT2(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    save_checkpoint(tmp_path / "model.safetensors", model)
    for run in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match=rf'load_pretrained\("{run}"\) reads a run'):
            GPT2.from_pretrained(run)
