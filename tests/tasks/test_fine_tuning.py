"""Fine-tuning by `dynbatch train labels.tsv --from FOLDER`."""

import json
from pathlib import Path

import numpy as np
import pytest

from dynbatch.commands.main import main
from dynbatch.models.pretrained import (
    Bert,
    BertConfig,
    Roberta,
    RobertaConfig,
    RobertaForClassification,
    load_pretrained,
)
from dynbatch.tasks.fine_tuning import FineTuning, FineTuningSettings
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.task import Parts
from dynbatch.text import LabelledText

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "you", "won", "see", "money", "later"]
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = BertConfig(vocab_size=10, intermediate_size=8, max_position_embeddings=8, **SIZES)
ROWS = ["spam\tyou won money", "ham\tsee you later", "spam\tmoney money", "ham\tyou see"]
RUN = ["--output", "run", "--batch-size", "4", "--lr", "0.02", "--samples", "0", "--quiet"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of an encoder with its tokenizer, and labels.tsv beside it."""
    monkeypatch.chdir(tmp_path)
    Bert(CONFIG, rng=3).save_pretrained("bert")
    Path("bert/vocab.txt").write_text("\n".join(PIECES))
    lines = [f"{row} {'later ' * (k % 3)}".strip() for k in range(10) for row in ROWS]
    Path("labels.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "bert"


def test_an_encoder_is_fine_tuned_used_and_read_by_others(folder, capsys):
    train = ["train", "labels.tsv", "--from", "bert", *RUN, "--epochs", "8"]
    assert main([*train, "--dev", "labels.tsv"]) == 0
    assert "fine-tuning, " in capsys.readouterr().out
    assert main(["generate", "run", "money won", "see later", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in found] == ["spam", "ham"]
    model = load_pretrained("run")
    assert model.config.labels == ["ham", "spam"] and model.config.hidden_dropout_prob == 0.1
    begun, tuned = [m.embeddings.word.weight.value for m in (Bert(CONFIG, rng=3), model)]
    moved = tuned - begun
    assert 0 < np.abs(moved).max() < 1  # it began with the folder's values
    assert main(["convert", "run/", "theirs/"]) == 0
    assert Path("theirs/vocab.txt").read_text() == Path("bert/vocab.txt").read_text()


def test_a_run_goes_on_without_the_folder_that_it_began_from(folder, capsys):
    train = ["train", "labels.tsv", "--from", "bert", *RUN]
    assert main([*train, "--epochs", "1"]) == 0
    folder.rename("gone")
    one = load_task("run").model.state_dict()
    assert main(["train", "--output", "run", "--resume", "--epochs", "2", "--quiet"]) == 0
    two = load_task("run").model.state_dict()
    assert not np.array_equal(one["classifier.weight"], two["classifier.weight"])
    capsys.readouterr()
    Path("labels.tsv").write_text("\n".join([*ROWS, "other\tyou"] * 5) + "\n")
    assert main(["train", "--output", "run", "--resume", "--epochs", "3"]) == 1
    assert "labels: " in capsys.readouterr().err


def test_with_lora_a_run_trains_matrices_and_the_classifier_and_goes_on(folder):
    assert (
        main(["train", "labels.tsv", "--from", "bert", "--lora", "2", *RUN, "--epochs", "1"]) == 0
    )
    folder.rename("gone")
    earlier = load_pretrained(Path("run", "model.safetensors")).state_dict()
    assert main(["train", "--output", "run", "--resume", "--epochs", "2", "--quiet"]) == 0
    model, begun = load_pretrained(Path("run", "model.safetensors")), Bert(CONFIG, rng=3)
    for name, parameter in model.named_parameters():
        assert parameter.frozen == ("lora_" not in name and not name.startswith("classifier."))
        is_equal = np.array_equal(parameter.value, earlier[name])
        assert is_equal == parameter.frozen, name
    for name, value in begun.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], value)
    assert main(["convert", "run/", "theirs/"]) == 0
    merged = load_pretrained("theirs").state_dict()
    assert merged.keys() == {name for name in earlier if "lora_" not in name}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            "a\tb\nc\td\n",
            ["--task", "translation", "--from", "bert"],
            "the file is for translation",
        ),
        ("x\ta b\ny\tc\n" * 9, ["--task", "fine-tuning"], "--from FOLDER is a BERT"),
        ("x\ta b\ny\tc\n" * 9, ["--task", "classification", "--from", "nowhere"], "no such file"),
        ("x\ta b\n" * 9, ["--task", "classification", "--from", "bert"], "have the label 'x'"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said(folder, text, options, said, capsys):
    Path("labels.tsv").write_text(text)
    assert main(["train", "labels.tsv", *options]) == 1
    assert said in capsys.readouterr().err


def test_help_with_from_lists_the_options_of_fine_tuning(folder, capsys):
    with pytest.raises(SystemExit):
        main(["train", "labels.tsv", "--from", "bert", "--help"])
    said = capsys.readouterr().out
    assert "--from X" in said and "AdamW" in said and "--min-count" not in said


def test_the_warm_up_is_a_tenth_of_few_updates():
    settings = FineTuningSettings(epochs=5, batch_size=6)
    assert [FineTuning.fitted([None] * n, settings)["warmup"] for n in (1, 18, 100, 9999)] == [
        1, 1, 8, 20
    ]  # fmt: skip


def test_texts_longer_than_the_model_reads_are_cut_and_counted(folder):
    settings = FineTuningSettings(from_="bert")
    texts = [LabelledText("see you", "ham"), LabelledText("won " * 9, "spam")]
    task = FineTuning.begin(Parts(texts, [], []), settings)
    assert task.ids("won " * 9).tolist() == [2, 6, 6, 6, 6, 6, 6, 3]
    assert task.tokens(texts) == ["1 of 2 held-out texts are cut, to the 8 that it reads"]
    assert task.tokens(texts[:1]) == [] and len(task.scores([text.text for text in texts])) == 2


def test_a_roberta_gets_the_head_that_its_encoder_lacks(folder):
    config = RobertaConfig(vocab_size=10, intermediate_size=8, max_position_embeddings=9, **SIZES)
    Roberta(config, rng=1).save_pretrained("roberta")
    Path("roberta/vocab.txt").write_text("\n".join(PIECES))
    texts = [LabelledText("see you", "ham"), LabelledText("won", "spam"), LabelledText("x", "y")]
    task = FineTuning.begin(Parts(texts, [], []), FineTuningSettings(from_="roberta"))
    assert type(task.model) is RobertaForClassification
    assert task.model.classifier.weight.shape == (3, 8)
