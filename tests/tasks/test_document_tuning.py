"""Tuning on documents by `dynbatch train poems.txt --from FOLDER --lora R`."""

from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.commands.main import main
from dynbatch.models.pretrained import Bert, BertConfig, Llama, LlamaConfig, load_pretrained
from dynbatch.tasks.registry import load_task
from dynbatch.train import read_checkpoint

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "ran", "slept", "on"]
SIZES = {"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
MARKS = {"bos_token_id": 2, "eos_token_id": [3, 4]}
CONFIG = LlamaConfig(intermediate_size=12, others=MARKS, **SIZES)
LINES = ["the fox ran", "the fox slept on", "the fox ran on and on", "on the fox"]
TRAIN = ["train", "poems.txt", "--from", "llama", "--lr", "0.02", "--samples", "1", "--quiet",
         "--sample-length", "4", "--dev", "poems.txt", "--output", "run"]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a causal model with its tokenizer, and poems.txt beside it."""
    monkeypatch.chdir(tmp_path)
    Llama(CONFIG, rng=3).save_pretrained("llama")
    Path("llama/vocab.txt").write_text("\n".join(PIECES))
    Path("poems.txt").write_text(
        "\n".join([f"{line}{' ran' * k}" for k in range(3) for line in LINES])
    )
    return tmp_path / "llama"


def test_lora_is_trained_by_one_command_goes_on_writes_and_is_merged(folder, capsys):
    assert main([*TRAIN, "--lora", "2", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert "document-tuning, 976 parameters (248 trained)" in said and "bits per byte" in said
    earlier = load_task("run").model.state_dict()
    checkpoint = read_checkpoint("run/model.safetensors")
    saved = [name for name in checkpoint.shapes if "model/" in name]
    assert len(saved) == 14 and all(["lora_" in name for name in saved])
    assert main(["train", "--output", "run", "--resume", "--epochs", "2", "--quiet"]) == 0
    resumed = read_checkpoint("run/model.safetensors")
    assert resumed.extra["adapter"] == checkpoint.extra["adapter"]
    begun = Llama(CONFIG, rng=3).state_dict()
    for name, value in load_task("run").model.state_dict().items():
        assert np.array_equal(value, earlier[name]) == ("lora_" not in name), name
        assert name not in begun or np.array_equal(value, begun[name])
    assert main(["convert", "run/", "merged/"]) == 0
    assert load_pretrained("merged").state_dict().keys() == begun.keys()
    said = " ".join(capsys.readouterr().out.split())
    assert "'a' is [2, 1]; the tokenizer of merged makes [2, 1, 3] of it" in said
    assert "--tokenizer ids '2 1'" in said
    assert main(["generate", "run", "the fox", "--dtype", "bfloat16"]) == 1
    assert "dynbatch convert run FOLDER" in capsys.readouterr().err
    written = []
    for model in ("run", "merged"):
        options = ["the fox", "--greedy", "--max-new-tokens", "3", "--quiet"]
        if model == "merged":  # whose tokenizer, BERT's, would put an end behind the prompt
            options = ["2 5 6", *options[1:], "--tokenizer", "ids"]
        assert main(["generate", model, *options]) == 0
        written.append(capsys.readouterr().out.split())
    assert written[0] == [PIECES[int(k)] for k in written[1] if k not in "34"] != []
    folder.rename(folder.with_name("gone"))
    assert main(["generate", "run", "the fox"]) == 1
    assert "put that folder back to" in capsys.readouterr().err
    assert main(["generate", "merged", "the fox", "--from", "gone"]) == 1
    resume = ["train", "--output", "run", "--resume", "--epochs", "3", "--quiet"]
    assert main([*resume, "--from", "nowhere"]) == 1
    capsys.readouterr()
    assert main([*resume, "--from", "gone"]) == 0
    assert main(["generate", "run", *options, "--from", "gone"]) == 0
    assert read_checkpoint("run/model.safetensors").extra["description"]["from"].endswith("gone")
    config = Path("gone/config.json")
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 5e5'))
    capsys.readouterr()
    assert main(["convert", "run/", "other/", "--from", "gone"]) == 1
    said = capsys.readouterr().err
    assert "rope_theta 500000.0, saved 10000.0" in said and not Path("other").exists()


def test_a_run_of_matrices_alone_names_convert_where_a_model_is_to_begin_from_it(folder, capsys):
    assert main([*TRAIN, "--lora", "2", "--epochs", "1"]) == 0
    assert main([*TRAIN, "--from", "run", "--output", "other"]) == 1
    assert "dynbatch convert run FOLDER writes the whole model" in capsys.readouterr().err


def test_without_lora_all_is_trained_and_the_folder_is_not_needed_again(folder):
    assert main([*TRAIN, "--epochs", "1"]) == 0
    folder.rename(folder.with_name("gone"))
    task, begun = load_task("run"), Llama(CONFIG, rng=3).state_dict()
    assert not any([np.array_equal(x, begun[n]) for n, x in task.model.state_dict().items()])
    assert task.tokenizer.whole("the fox").tolist() == [2, 5, 6, 3]


def test_a_piece_counts_only_what_no_piece_before_it_has():
    model, ids = Llama(CONFIG, rng=3), [2, 5, 6, 7, 9, 8, 3]
    with db.Graph(grad=False) as graph:
        whole, first, rest = graph.values(
            [model.loss(graph, ids), model.loss(graph, ids[:4]), model.loss(graph, ids, context=3)]
        )
    assert whole == pytest.approx(first + rest, rel=1e-5) and rest > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "bert"], "a Bert, which does not continue text"),
        (["--overlap", "600"], "--overlap 600 with --longest 512"),
        (["--from", "endless"], 'put "eos_token_id" into its config.json'),
        (["--task", "document-tuning", "--output", "run"], "--from FOLDER is a GPT-2, Llama"),
        (["--dropout", "0.1"], "--dropout 0.1 without --lora"),
        (["--output", "in_parts"], "in_parts: a folder of Hugging Face"),
        (["--from", "nowhere"], "nowhere: there is no such file or folder"),
    ],
)
def test_what_cannot_be_tuned_is_said(folder, options, said, capsys):
    Bert(BertConfig(intermediate_size=8, **SIZES)).save_pretrained("bert")
    Llama(LlamaConfig(intermediate_size=12, **SIZES)).save_pretrained("endless")
    Path("in_parts").mkdir()
    Path("in_parts/config.json").write_text("{}")
    train = ["train", "poems.txt"] if "--task" in options else TRAIN
    assert main([*train, *options]) == 1
    assert said in capsys.readouterr().err and not Path("run").exists()
