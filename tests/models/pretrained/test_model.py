"""Checkpoints' folders into a model and out again, with a family made for the test."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dynbatch.commands.main import main
from dynbatch.errors import ArgumentError, CheckpointError
from tests.models.pretrained.tiny import Tiny, pack, read, same, tiny, write

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def test_what_is_written_is_read_again_to_the_bit(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    loaded = Tiny.from_pretrained(tmp_path)
    assert same(model, loaded) and loaded.config == Tiny.from_pretrained(tmp_path).config
    assert not loaded.training and loaded.head.weight is loaded.embed.weight


def test_the_file_has_the_names_and_forms_of_the_table_and_ties_once(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    layer = model.layers[1]
    assert len(theirs) == 2 + 2 * 10 and "lm_head.weight" not in theirs
    keys = theirs["tiny.h.1.attn.k.weight"]
    assert np.array_equal(keys, layer.in_proj_weight.value[4:8])
    assert np.array_equal(theirs["tiny.h.1.c_fc.weight"], layer.linear.weight.value.T)
    assert np.array_equal(theirs["final_logits_bias"], model.final_bias.value[None])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["TinyModel"] and config["model_type"] == "tiny"


def test_what_config_json_holds_besides_is_written_back(tmp_path):
    tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    more = {"model_type": "tinier", "pad_token_id": 3, "task": {"a": [1]}, "dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config | more))
    Tiny.from_pretrained(tmp_path, act=None).save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    del more["dtype"]
    assert again == config | more | {"act": None}


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)], ids=str
)
def test_files_of_half_precision_are_rounded_to_nearest_and_read_exactly(tmp_path, dtype, bits):
    torch = pytest.importorskip("torch")
    model = tiny()
    model.embed.weight.value[0] = [np.inf, -np.inf, 0, -1e-30]
    model.save_pretrained(tmp_path, dtype=dtype)
    loaded = Tiny.from_pretrained(tmp_path)
    for name, value in loaded.state_dict().items():
        theirs = torch.from_numpy(model.state_dict()[name]).to(getattr(torch, dtype)).float()
        assert np.array_equal(value, theirs.numpy()), name
    assert np.allclose(loaded.final_bias.value, model.final_bias.value, rtol=2.0**-bits, atol=0)


def test_float64_is_rounded_and_nan_stays_nan_in_every_dtype(tmp_path):
    model = tiny()
    model.final_bias.value[:2] = np.nan, np.uint32(0x7FFFFFFF).view(np.float32)
    for dtype in ("float32", "float16", "bfloat16"):
        model.save_pretrained(tmp_path, dtype=dtype)
        assert np.isnan(Tiny.from_pretrained(tmp_path).final_bias.value).tolist() == [
            True, True, *[False] * 5
        ]  # fmt: skip
    model = tiny()
    model.save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    save_file({k: v.astype(np.float64) + 1e-12 for k, v in theirs.items()}, tmp_path / WEIGHTS)
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_shards_hold_whole_tensors_within_the_size_and_load_alike(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path, max_shard_size="300 B")
    index = json.loads((tmp_path / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        held = load_file(tmp_path / file)
        assert sum(array.nbytes for array in held.values()) <= 300
        assert {name for name, where in index["weight_map"].items() if where == file} == set(held)
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_files_of_an_earlier_form_are_removed(tmp_path):
    tiny().save_pretrained(tmp_path, max_shard_size=300)
    model = tiny(layers=1)
    for name in ("model-best.safetensors", "vocab.txt"):
        (tmp_path / name).touch()  # of the user
    model.save_pretrained(tmp_path)
    kept = ["config.json", "model-best.safetensors", WEIGHTS, "vocab.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
    model.save_pretrained(tmp_path, max_shard_size=300)
    assert not (tmp_path / WEIGHTS).exists()
    assert same(Tiny.from_pretrained(tmp_path), model)


def renamed(path, rename):
    header, body = read(path)
    write(path, {rename(name): entry for name, entry in header.items()}, body)


def test_a_prefix_may_be_there_or_not_and_norms_have_old_names(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    renamed(tmp_path / WEIGHTS, lambda name: name.removeprefix("tiny."))
    assert same(Tiny.from_pretrained(tmp_path), model)

    def old(name):
        above, _, last = name.rpartition("LayerNorm.")
        return f"{above}LayerNorm.{ {'weight': 'gamma', 'bias': 'beta'}[last] }" if above else name

    renamed(tmp_path / WEIGHTS, old)
    assert "gamma" in str(read(tmp_path / WEIGHTS)[0])
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_buffers_and_heads_that_are_skipped_may_be_there_in_any_dtype(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    more = {"tiny.position_ids": np.arange(3), "h.1.attn.mask": np.ones((1, 1, 2, 2), bool)}
    more["cls.dense.weight"] = np.ones((2, 2), np.float16)
    save_file({**load_file(tmp_path / WEIGHTS), **more}, tmp_path / WEIGHTS)
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_a_tied_tensor_may_stand_under_either_name_or_both_if_equal(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    table = theirs.pop("tiny.wte.weight")
    save_file({**theirs, "lm_head.weight": table}, tmp_path / WEIGHTS)
    assert same(Tiny.from_pretrained(tmp_path), model)
    both = {**theirs, "lm_head.weight": table, "tiny.wte.weight": table}
    save_file(both, tmp_path / WEIGHTS)
    assert same(Tiny.from_pretrained(tmp_path), model)
    save_file({**both, "lm_head.weight": table + 1}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' differs from 'wte.weight'"):
        Tiny.from_pretrained(tmp_path)
    untied = Tiny.from_pretrained(tmp_path, tie_word_embeddings=False)
    assert np.array_equal(untied.head.weight.value, table + 1)


def test_all_differences_of_names_shapes_and_dtypes_are_named_at_once(tmp_path):
    tiny().save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    del theirs["tiny.h.0.attn.q.bias"], theirs["tiny.h.1.attn.v.bias"]
    theirs |= {"more.weight": np.ones(2, np.float32), "final_logits_bias": np.ones((1, 7), int)}
    theirs["tiny.h.1.c_fc.weight"] = theirs["tiny.h.1.c_fc.weight"].T.copy()
    save_file(theirs, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        Tiny.from_pretrained(tmp_path)
    said = str(caught.value)
    for part in (
        str(tmp_path), "missing: tiny.h.0.attn.q.bias, tiny.h.1.attn.v.bias",
        "unexpected: 'more.weight'", "'final_logits_bias' of I64",
        "'tiny.h.1.c_fc.weight' (8, 4), for (4, 8)", "test_model.py",
    ):  # fmt: skip
        assert part in said


def test_a_tensor_under_its_other_name_is_not_called_missing_beside_a_wrong_one(tmp_path):
    tiny().save_pretrained(tmp_path)
    theirs = load_file(tmp_path / WEIGHTS)
    theirs["lm_head.weight"] = theirs.pop("tiny.wte.weight")
    theirs["final_logits_bias"] = np.ones((1, 8), np.float32)
    theirs |= {f"more.{k}": np.ones(1, np.float32) for k in range(201)}
    save_file(theirs, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        Tiny.from_pretrained(tmp_path)
    said = str(caught.value)
    assert "missing:" not in said and "(1, 8), for (1, 7)" in said
    assert said.count("'more.") == 200 and ", and more" in said


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path):
    tiny().save_pretrained(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"a pickle(.|\n)*dynbatch convert"):
        Tiny.from_pretrained(tmp_path)


def test_the_way_to_convert_a_pickle_works(tmp_path):
    torch = pytest.importorskip("torch")
    model = tiny()
    model.save_pretrained(tmp_path)
    theirs = {k: torch.from_numpy(v) for k, v in load_file(tmp_path / WEIGHTS).items()}
    theirs["lm_head.weight"] = theirs["tiny.wte.weight"]  # memory that two tensors share
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(CheckpointError) as caught:
        Tiny.from_pretrained(tmp_path)
    (command,) = [line.split() for line in str(caught.value).splitlines() if "  dynbatch" in line]
    assert command[0] == "dynbatch" and main(command[1:]) == 0
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_another_model_type_is_named(tmp_path):
    tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "huge"}))
    with pytest.raises(CheckpointError, match=r"'huge'(.|\n)*'tiny' and 'tinier'"):
        Tiny.from_pretrained(tmp_path)


def test_changes_are_fields_and_their_errors_are_the_callers(tmp_path):
    tiny().save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"width cannot be changed(.|\n)*vocab_size"):
        Tiny.from_pretrained(tmp_path, width=3)
    with pytest.raises(ArgumentError, match="act is 'sin'"):
        Tiny.from_pretrained(tmp_path, act="sin")


def test_a_giant_configuration_takes_no_memory(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    for sizes in ({"dim": 10**9}, {"dim": 10**30}, {"layers": 10**9}, {"layers": -1, "dim": -1}):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | sizes))
        with pytest.raises(CheckpointError, match=str(tmp_path)):
            Tiny.from_pretrained(tmp_path)


def test_files_that_pytorchs_safetensors_wrote_load_from_a_cache_of_links(tmp_path):
    model = tiny()
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1a"
    blobs.mkdir()
    model.save_pretrained(snapshot)
    for k, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(k))
        file.symlink_to(f"../../blobs/{k}")
    assert same(Tiny.from_pretrained(snapshot), model)
    (tmp_path / "elsewhere").write_bytes((blobs / "1").read_bytes())
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        Tiny.from_pretrained(snapshot)


def test_an_empty_tensor_and_headers_in_any_order_are_read(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    header, body = read(tmp_path / WEIGHTS)
    header = dict(reversed(header.items()))
    header["cls.none"] = {"dtype": "F32", "shape": [0, 3], "data_offsets": [len(body)] * 2}
    text = b" " + json.dumps(header, indent=1).encode() + b"\n  "
    write(tmp_path / WEIGHTS, text, body)
    assert same(Tiny.from_pretrained(tmp_path), model)


def test_nothing_is_left_of_a_writing_that_fails(tmp_path, monkeypatch):
    model = tiny()
    model.save_pretrained(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    from dynbatch.models.pretrained import writing

    def fails(path, parts, dtype):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_tensors", fails)
    with pytest.raises(CheckpointError, match=r"No space left(.|\n)*make room"):
        tiny(layers=1).save_pretrained(tmp_path, max_shard_size=300)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    with pytest.raises(ArgumentError, match="float8"):
        model.save_pretrained(tmp_path, dtype="float8")


def test_pack_writes_what_safetensors_reads(tmp_path):
    pack(tmp_path / "x", {("a", "F32"): np.ones(2, np.float32)})
    assert np.array_equal(load_file(tmp_path / "x")["a"], [1, 1])
