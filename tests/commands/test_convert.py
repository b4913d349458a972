"""`dynbatch convert`: values both ways, what is said, and what is refused."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dynbatch import models, optim
from dynbatch.commands.main import main
from dynbatch.errors import CheckpointError
from dynbatch.models.pretrained import GPT2, GPT2Config, load_pretrained
from dynbatch.models.pretrained.folder import WEIGHTS
from dynbatch.models.pretrained.tensors import tensors_of
from dynbatch.train import SentenceBatches, Trainer, read_checkpoint, save_checkpoint

FIXTURES = Path(__file__).parents[1] / "models" / "pretrained" / "fixtures"
FOLDERS = sorted([path.name for path in FIXTURES.iterdir() if (path / "config.json").exists()])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def converted(*arguments):
    assert main(["convert", *map(str, arguments)]) == 0


def refused(capsys, *arguments):
    capsys.readouterr()
    assert main(["convert", *map(str, arguments)]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("name", FOLDERS)
def test_every_family_goes_to_a_checkpoint_and_back_to_the_bit(name, capsys):
    converted(FIXTURES / name, "run")
    converted("run", "back")
    lines = [line for line in capsys.readouterr().out.splitlines() if str(FIXTURES) not in line]
    assert len(lines) > 20 and max(map(len, lines)) <= 80
    first = load_pretrained(FIXTURES / name)
    wanted = first.state_dict()
    for path in ("run/model.safetensors", "back"):
        again = load_pretrained(path)
        assert type(again) is type(first) and not again.training
        configs = [replace(one.config, others={}) for one in (again, first)]
        assert configs[0].to_json() == configs[1].to_json()  # None has become its number
        values = again.state_dict()
        assert values.keys() == wanted.keys()
        assert all([np.array_equal(value, wanted[key]) for key, value in values.items()])
    config = json.loads(Path("back", "config.json").read_text())
    assert config["architectures"] == [first.architecture] and config["torch_dtype"] == "float32"


def test_tensors_come_back_under_the_names_that_they_had(capsys):
    """Compared with the file itself, not with what this library reads of it."""
    converted(FIXTURES / "bert", "run")
    converted("run", "back")
    theirs = load_file(FIXTURES / "bert" / WEIGHTS)
    ours = load_file(Path("back", WEIGHTS))
    assert len(ours) > 30
    for name, value in ours.items():
        assert np.array_equal(value, theirs[name]), name
    assert not theirs.keys() - ours.keys()


def test_what_is_left_out_is_said(capsys):
    converted(FIXTURES / "bert-of-2018", "run/bert.safetensors")
    said = capsys.readouterr().out
    assert "run/bert.safetensors: a checkpoint of dynbatch, Bert\n" in said
    assert (
        "left out: " in said
        and "cls.predictions.transform.dense.bias, " in said
        and "cls.seq_relationship.weight" in said
    )


def test_a_training_run_becomes_a_folder_with_its_tokenizer(capsys):
    model = GPT2.from_pretrained(FIXTURES / "gpt2")
    batches = SentenceBatches([np.array([3, 1, 4]), np.array([1, 5])], 2)

    def loss(graph, model, ids):
        return model.loss(graph, ids)

    path = Path("run", WEIGHTS)
    Trainer(
        model, optim.Adam(model), loss, batches, checkpoint_path=path, show_progress=False,
        extra={"note": "mine"},
    ).fit(1)  # fmt: skip
    assert read_checkpoint(path).extra["note"] == "mine"
    Path("run", "vocab.json").write_text("{}")
    converted("run", "gpt2", "--dtype", "bfloat16")
    said = capsys.readouterr().out
    assert "gpt2: Hugging Face's GPT2LMHeadModel" in said and "copied: vocab.json" in said
    assert "left out: the optimizer's state, " in said
    back = GPT2.from_pretrained("gpt2")
    for name, parameter in back.named_parameters():
        ours = dict(model.named_parameters())[name].value
        assert np.allclose(parameter.value, ours, rtol=2.0**-8, atol=0), name


def test_an_own_model_is_not_one_of_hugging_face(capsys):
    save_checkpoint("own.safetensors", models.Linear(2, 2))
    said = refused(capsys, "own.safetensors", "folder")
    assert "not one of Hugging Face's families" in said and "load_checkpoint" in said
    assert not Path("folder").exists()


def test_a_checkpoint_that_lies_about_its_sizes_is_refused_before_memory_is_taken():
    model = GPT2(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    config = {**model.checkpoint_extra()["pretrained"], "vocab_size": 10**15}
    save_checkpoint("model.safetensors", model, extra={"pretrained": config})
    with pytest.raises(CheckpointError, match="its tensors are not those of its GPT2"):
        load_pretrained("model.safetensors")
    save_checkpoint("model.safetensors", model, extra={"pretrained": {"model_type": "os.remove"}})
    with pytest.raises(CheckpointError, match=r"its model_type is 'os\.remove'"):
        load_pretrained("model.safetensors")


def test_nothing_is_replaced_unasked(capsys):
    converted(FIXTURES / "gpt2", "run")
    before = Path("run", WEIGHTS).read_bytes()
    assert "is there already; nothing was written" in refused(capsys, FIXTURES / "llama", "run")
    assert Path("run", WEIGHTS).read_bytes() == before
    converted(FIXTURES / "llama", "run", "--overwrite")
    assert Path("run", WEIGHTS).read_bytes() != before
    converted("run", "back")
    for source, target in (("run", "run"), ("back", "back"), (FIXTURES / "gpt2", "back")):
        assert "folder" in refused(capsys, source, target, "--overwrite")
    assert type(load_pretrained("back")).__name__ == "Llama"


def test_what_cannot_be_converted_is_said(capsys):
    Path("empty").mkdir()
    assert "neither config.json nor model.safetensors" in refused(capsys, "empty", "x")
    assert "there is no such file or folder" in refused(capsys, "nowhere", "x")
    converted(FIXTURES / "gpt2", "gpt2.safetensors")
    assert "nothing to convert" in refused(capsys, "gpt2.safetensors", "x.safetensors")
    Path("notes.txt").write_text("text")
    assert "not a whole safetensors file" in refused(capsys, "notes.txt", "x")


def test_pytorchs_state_dicts_go_to_safetensors_and_back(capsys):
    torch = pytest.importorskip("torch")
    theirs = {
        "a.weight": torch.randn(3, 4).T,  # not contiguous
        "half": torch.randn(5).to(torch.bfloat16),
        "ids": torch.arange(4),
        "number": torch.tensor(2.5),
    }
    theirs["tied"] = theirs["a.weight"]
    torch.save(theirs, "weights.pt")
    converted("weights.pt", "weights.safetensors")
    said = capsys.readouterr().out
    assert "weights.pt: 5 tensors" in said and "4×3     float32   a.weight" in said
    converted("weights.safetensors", "again.bin")
    again = torch.load("again.bin", weights_only=True)
    assert again.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name


def test_a_state_dict_is_found_in_what_a_training_script_saved(capsys):
    torch = pytest.importorskip("torch")
    first, second = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    torch.save({"epoch": 3, "model": {**first, "step": 1}}, "run.pth")
    converted("run.pth", "run.safetensors")
    assert "left out: epoch, model.step" in capsys.readouterr().out
    torch.save({"model": first, "ema": second}, "two.pth")
    said = refused(capsys, "two.pth", "two.safetensors")
    assert "2 state dicts: model, ema" in said and "--key model" in said
    converted("two.pth", "two.safetensors", "--key", "ema")
    assert load_file("two.safetensors")["w"].tolist() == [0, 0]
    torch.save([1, 2], "list.pt")
    assert "it holds a list" in refused(capsys, "list.pt", "x.safetensors")


def test_a_run_becomes_a_state_dict_without_its_optimizer(capsys):
    torch = pytest.importorskip("torch")
    model = models.Linear(3, 2)
    save_checkpoint(Path("run", WEIGHTS), model, optim.Adam(model))
    converted("run", "weights.pt")
    assert "left out: the optimizer's state, " in capsys.readouterr().out
    theirs = torch.nn.Linear(3, 2)
    theirs.load_state_dict(torch.load("weights.pt", weights_only=True))
    assert np.array_equal(theirs.weight.detach().numpy(), model.weight.value)


def test_a_folder_becomes_a_state_dict_under_its_own_names():
    torch = pytest.importorskip("torch")
    for name in ("gpt2", "bert-encoder-bfloat16"):  # a file, and several with an index
        converted(FIXTURES / name, f"{name}.pth")
        found = torch.load(f"{name}.pth", weights_only=True)
        wanted = [
            one for path in (FIXTURES / name).glob("*.safetensors") for one in tensors_of(path)
        ]
        assert {key: tuple(one.shape) for key, one in found.items()} == {
            key: one.shape for key, one in wanted
        }


def test_code_in_a_pickle_is_never_run(capsys):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(1), "hook": Touch()}, "evil.pt")
    said = refused(capsys, "evil.pt", "x.safetensors")
    assert "not a file of tensors alone" in said
    Path("plain.pt").write_bytes(pickle.dumps(Touch()))
    assert "not a file of tensors alone" in refused(capsys, "plain.pt", "x.safetensors")
    Path("cut.pt").write_bytes(Path("evil.pt").read_bytes()[:200])
    assert "cut.pt" in refused(capsys, "cut.pt", "x.safetensors")
    assert not Path("touched").exists() and not Path("x.safetensors").exists()


class Touch:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("touched"),)


def test_parts_of_a_pickled_model_are_merged_by_their_index(capsys):
    torch = pytest.importorskip("torch")
    files = {
        "pytorch_model-00001.bin": {"a": torch.ones(2)},
        "pytorch_model-00002.bin": {"b": torch.ones(3)},
    }
    for name, tensors in files.items():
        torch.save(tensors, name)
    index = {"weight_map": {one: name for name, tensors in files.items() for one in tensors}}
    path = Path("pytorch_model.bin.index.json")
    path.write_text(json.dumps(index))
    converted(path, WEIGHTS)
    assert {name: one.shape for name, one in load_file(WEIGHTS).items()} == {"a": (2,), "b": (3,)}
    for name in ("../secret.bin", path.name):
        path.write_text(json.dumps({"weight_map": {"a": name}}))
        assert "the name of a file" in refused(capsys, path, "other.safetensors")


def test_where_pytorch_is_missing_it_is_said_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    Path("weights.pt").write_bytes(b"")
    said = refused(capsys, "weights.pt", "weights.safetensors")
    assert "PyTorch is not installed" in said and "pip install" in said
