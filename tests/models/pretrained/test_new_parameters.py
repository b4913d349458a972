"""`new=` of `from_pretrained`: parameters that begin at random."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dynbatch.errors import ArgumentError, CheckpointError
from tests.models.pretrained.tiny import Tiny, tiny

WEIGHTS = "model.safetensors"


def test_they_begin_at_random_if_the_folder_has_none(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    fix = r'missing: lm_head.weight\n  fix:  [^\n]* new=\["head\.\{\}"\]'
    with pytest.raises(CheckpointError, match=fix):
        Tiny.from_pretrained(tmp_path, tie_word_embeddings=False)
    untied = Tiny.from_pretrained(tmp_path, new=["head.{}"], tie_word_embeddings=False)
    values = untied.head.weight.value
    assert values.shape == (7, 4) and 0 < np.abs(values).max() <= 0.5
    values[0] = 3  # memory of its own, that can be written to
    assert np.array_equal(untied.embed.weight.value, model.embed.weight.value)


def test_they_begin_at_random_if_the_folder_has_them_too(tmp_path):
    model = tiny(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    new = ["head.{}", "layers.0.linear.{}", "layers.*.norm.weight", "final_bias"]
    found = Tiny.from_pretrained(tmp_path, new=new).state_dict()
    fresh = {"head.weight", "layers.0.linear.weight", "layers.0.linear.bias", "final_bias"}
    fresh |= {"layers.0.norm.weight", "layers.1.norm.weight"}
    saved = model.state_dict()
    assert {name for name in saved if not np.array_equal(saved[name], found[name])} == fresh
    assert 0 < np.abs(found["head.weight"]).max() <= 0.5  # 1/√4, as in a model made anew
    assert (found["final_bias"] == 0).all() and (found["layers.1.norm.weight"] == 1).all()


def test_what_is_tied_to_one_is_not_read_under_either_name(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    theirs["lm_head.weight"] = theirs["tiny.wte.weight"]
    for gone in ("no name", "tiny.wte.weight"):
        theirs.pop(gone, None)
        save_file(theirs, tmp_path / WEIGHTS)
        found = Tiny.from_pretrained(tmp_path, new=["embed.weight"])
        assert not np.array_equal(found.embed.weight.value, model.embed.weight.value)
        assert np.array_equal(found.final_bias.value, model.final_bias.value)


def test_they_may_have_other_shapes_than_the_folders(tmp_path):
    tiny(tie_word_embeddings=False).save_pretrained(tmp_path)
    new = ["embed.{}", "final_bias", "head.{}"]
    with pytest.raises(CheckpointError) as caught:
        Tiny.from_pretrained(tmp_path, vocab_size=9)
    said = str(caught.value)
    assert "wrong: " in said and 'new=["final_bias", "embed.{}", "head.{}"]' in said
    assert Tiny.from_pretrained(tmp_path, vocab_size=9, new=new).head.weight.shape == (9, 4)


@pytest.mark.parametrize(
    ("new", "fix"),
    [
        ("head.{}", "give new=['head.{}']"),
        ([3], 'as in new=["classifier.{}"]'),
        (["embed.{}", "head"], 'give new=["head.{}"]'),
        (["nothing like it"], "print(model) shows the parameters"),
    ],
)
def test_new_has_to_name_parameters(tmp_path, new, fix):
    tiny(tie_word_embeddings=False).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError) as caught:
        Tiny.from_pretrained(tmp_path, new=new)
    assert fix in str(caught.value)
