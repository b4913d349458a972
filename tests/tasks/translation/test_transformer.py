"""The Transformer of a translation: its loss, its search, and a run of it."""

import shutil

import numpy as np
import pytest

import dynbatch as db
from dynbatch.commands.main import main as dynbatch
from dynbatch.tasks.options import given
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.settings import settings_of
from dynbatch.tasks.translation import translator
from dynbatch.tasks.translation.settings import TranslationSettings
from dynbatch.tasks.translation.translator import Translator
from dynbatch.train import load_checkpoint, read_checkpoint, read_metrics, save_checkpoint

pytestmark = pytest.mark.usefixtures("same_threads")


def main(arguments):
    """The exit status of `dynbatch train`."""
    return dynbatch(["train", *arguments])


SMALL = ["--model", "transformer", "--hidden", "8", "--heads", "2", "--layers", "1", "--quiet"]
SMALL += ["--max-tokens", "100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A file of words to copy, and a run that is done."""
    folder = tmp_path_factory.mktemp("transformer")
    rng = np.random.default_rng(0)
    words = sorted({" ".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(120)})
    path = folder / "copy.tsv"
    path.write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    units = ["--source-units", "words", "--target-units", "words"]
    given = [str(path), *units, "--output", str(folder / "run"), "--epochs", "2"]
    assert main([*given, *SMALL]) == 0
    return folder / "run"


def test_a_run_is_saved_and_translates_as_it_did(run):
    checkpoint = run / "model.safetensors"
    info = read_checkpoint(checkpoint)
    assert info.extra["description"]["model"] == "transformer"
    assert info.extra["description"]["max_length"] == 5 + 10  # places it saw, and a few
    translator = load_task(checkpoint)
    again = Translator.described(info)
    load_checkpoint(checkpoint, again.model)
    sources = ["a b", "c"]
    assert [one.tokens for (one,) in translator.translate(sources)] == [
        one.tokens for (one,) in again.translate(sources)
    ]
    records = [r for r in read_metrics(run / "metrics.jsonl") if "padded_bytes" in r]
    assert records and all(r["padded_bytes"] > 0 for r in records)


def test_a_run_goes_on_without_being_told_its_settings(run, tmp_path, capsys):
    output = str(shutil.copytree(run, tmp_path / "run"))
    assert main(["--output", output, "--resume", "--epochs", "3", "--quiet"]) == 0
    assert read_checkpoint(f"{output}/model.safetensors").epoch == 3
    assert main(["--output", output, "--resume", "--model", "lstm"]) == 1
    assert "the run has --model transformer, not lstm" in capsys.readouterr().err


def test_words_of_a_file_are_also_scored_by_bleu(run, capsys, monkeypatch):
    """As they are where sacrebleu is installed."""
    monkeypatch.setattr(translator, "translation_scores", lambda found, right: {"BLEU": 12.34})
    assert main(["--output", str(run), "--resume", "--quiet"]) == 0
    assert ", BLEU 12.3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden": 10**15}, "for 'model/source_embedding.weight'"),
        ({"layers": 7}, "7 layers where 1 were saved"),
        ({"heads": 3}, "heads"),
        ({"heads": "x"}, "'x' for 'heads'"),
    ],
)
def test_a_damaged_description_is_refused(run, tmp_path, changed, says):
    info = read_checkpoint(run / "model.safetensors")
    translator = Translator.described(info)
    translator.sizes_of_model = {**translator.sizes_of_model, **changed}
    extra = {"task": "translation", "description": translator.description()}
    path = tmp_path / "damaged.safetensors"
    save_checkpoint(path, translator.model, extra=extra)
    with pytest.raises(db.errors.CheckpointError, match="damaged") as error:
        load_task(path)
    assert says in str(error.value)


def test_a_transformer_has_settings_of_its_own_and_none_of_an_lstm():
    def settings(*arguments):
        return settings_of(TranslationSettings, given(TranslationSettings, arguments, "train", "x"))

    found = settings("--model", "transformer", "--lr", "0.5")
    suited = {**TranslationSettings.transformer, "lr": 0.5}
    assert suited.items() <= {name: getattr(found, name) for name in suited}.items()
    assert settings().max_tokens is None
    for flags in (["--embed", "3"], ["--attention", "general"]):
        with pytest.raises(db.errors.ArgumentError, match=f"{flags[0]} is of --model lstm"):
            settings("--model", "transformer", *flags)
