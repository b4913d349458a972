"""`dynbatch train`: from a file to a run that writes, and what it refuses."""

import os
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from dynbatch.commands import generate
from dynbatch.commands.main import Parser, main
from dynbatch.commands.train import prompt_of
from dynbatch.models import GPT
from dynbatch.optim import Adam
from dynbatch.tasks.language_model import DocumentWriter
from dynbatch.tasks.registry import load_task
from dynbatch.tasks.tagging import Tagging
from dynbatch.text import TaggedSentence
from dynbatch.train import read_checkpoint, read_metrics

pytestmark = pytest.mark.usefixtures("same_threads")

TEXT = ["--width", "16", "--layers", "1", "--heads", "2", "--max-tokens", "300"]
TEXT += ["--sample-length", "20", "--epochs", "2", "--quiet"]
TAGS = ["--features", "8", "--letters", "4", "--hidden", "8", "--epochs", "2", "--quiet"]
LABELS = ["--features", "8", "--filters", "4", "--epochs", "2", "--quiet"]
PAIRS = ["--embed", "6", "--hidden", "8", "--batch-size", "16", "--epochs", "2", "--quiet"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Two files, and a folder of their own for runs."""
    monkeypatch.chdir(tmp_path)
    Path("poem.txt").write_text("\n\n".join(["ab" * (3 + k % 9) + str(k % 7) for k in range(60)]))
    rng = np.random.default_rng(0)
    words = sorted({"".join(rng.choice(list("abc"), rng.integers(2, 7))) for _ in range(120)})
    Path("pairs.tsv").write_text("".join([f"{w}\t{' '.join(w.upper())}\n" for w in words]))
    return tmp_path


def fails(capsys, *arguments):
    assert main(["train", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    return error


def test_a_text_becomes_a_language_model_that_writes_on(capsys):
    assert main(["train", "poem.txt", *TEXT]) == 0
    printed = capsys.readouterr().out
    for said in (
        "It is read for language-model", "train     5", "held out by a hash", "  | abab",
        "model     language-model, ", "bits per byte", "test, ", "padded",
        "\nxz after the same text    ",
        "  dynbatch generate runs/poem abab", "--output runs/poem --resume --epochs 4",
    ):  # fmt: skip
        assert said in printed, said
    assert printed.count("validation: ") == 2
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["generate", "runs/poem", "ab", "--greedy", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("documents", "prompt"),
    [
        (["-hello there", "-n what"], "-- '-hello there'"),
        (
            ["春眠不覺曉處處聞啼鳥夜來風雨聲花落知多少" * 9],
            f"'{'春眠不覺曉處處聞啼鳥夜來風雨聲花落知多少' * 2}'",
        ),
        (["it's so", "no, never"], "'no, never'"),
        (["it's so"], "'it'\"'\"'s so'"),
        (["\x1b[31m is red", "so is all"], "'so is'"),
    ],
)
def test_the_prompt_of_the_printed_command_can_be_pasted(documents, prompt):
    assert prompt_of(documents, DocumentWriter) == prompt
    at_shell = shlex.split(f"runs/x {prompt}")
    parser = Parser("dynbatch generate", "", "")
    generate.add_options(parser)
    options = parser.parse_intermixed_args(at_shell)
    assert (options.model, len(options.prompts)) == ("runs/x", 1)
    assert any(one.startswith(options.prompts[0]) for one in documents)


def test_the_help_tells_no_default_that_the_task_decides(capsys):
    for arguments, said in (
        (
            (),
            ["--batch-size X  sentences in a mini-batch (by the task)", "of all that is drawn (0)"],
        ),
        (("poem.txt",), ["passes over the data (by its size, 1 to 40)", "\nlanguage-model:\n"]),
        (("--task", "tagging"), ["passes over the data (8)", "sentences in a mini-batch (16)"]),
    ):
        with pytest.raises(SystemExit):
            main(["train", *arguments, "--help"])
        helped = capsys.readouterr().out
        for one in said:
            assert one in helped, one


@pytest.mark.parametrize(
    ("option", "of"),
    [
        (["--model", "lstm"], "--model is for translation; this is another task"),
        (["--crf"], "--crf is for tagging; this is another task"),
        (
            ["--batch-size=3"],
            "--batch-size is for translation, classification, fine-tuning, tagging; this is",
        ),
        (["--widht", "3"], "fix:  --width?"),
    ],
)
def test_an_option_of_another_task_is_refused_as_such(option, of, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "poem.txt", *option])
    assert ended.value.code == 2 and of in capsys.readouterr().err


def test_heads_that_do_not_divide_the_width_name_the_option(capsys):
    error = fails(capsys, "poem.txt", *TEXT, "--width", "100", "--heads", "8")
    assert "--width 100 with --heads 8: 12.5 features a head" in error
    assert error.endswith("fix:  --width 112\n")


def test_pairs_become_a_translator_of_spellings_to_words(capsys):
    assert main(["train", "pairs.tsv", "--output", "run", *PAIRS]) == 0
    printed = capsys.readouterr().out
    assert "It is read for translation" in printed and "sources with" in printed
    assert "tokens    3 different characters in sources, 3 words in targets\n" in printed
    assert "→" in printed.split("epoch 2, validation: token error rate")[1]
    assert max(map(len, printed.splitlines())) <= 80
    translator = load_task("run/model.safetensors")
    assert (translator.source_units, translator.target_units) == ("characters", "words")
    assert main(["generate", "run", "abca", "cab"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("crf", [[], pytest.param(["--crf"], marks=pytest.mark.slow)])
def test_tagged_sentences_become_a_tagger(capsys, crf):
    lines = [["the/DET", "old/ADJ", "man/NOUN", "saw/VERB"], ["we/PRON", "saw/VERB", "it/PRON"]]
    Path("tagged.txt").write_text("".join([" ".join(lines[k % 2][k % 3 :]) + f" a{k}/X\n"
                                           for k in range(60)]))  # fmt: skip
    assert main(["train", "tagged.txt", *TAGS, *crf]) == 0
    printed = capsys.readouterr().out
    assert "It is read for tagging" in printed and "most frequent tag" in printed
    assert printed.count("validation: ") == 2 and "of the tags are right" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["generate", "runs/tagged", "the man saw", "it"]) == 0
    out = capsys.readouterr().out
    assert [[token.split("/")[0] for token in line.split()] for line in out.splitlines()] == [
        ["the", "man", "saw"], ["it"]
    ]  # fmt: skip
    assert main(["train", "--output", "runs/tagged", "--resume", "--epochs", "3", "--quiet"]) == 0
    resumed = capsys.readouterr().out
    assert resumed.count("epoch 3, validation: ") == 1 and "most frequent tag" in resumed
    assert main(["explain", "runs/tagged"]) == 0


def test_labelled_texts_become_a_classifier(capsys):
    rows = [("ham", "See you, then."), ("spam", "You won!")]
    lines = [f'{rows[k % 2][0]},"{rows[k % 2][1]} {k}"\n' for k in range(60)]
    Path("mails.csv").write_text("".join(["label,text\n", *lines]))
    assert main(["train", "mails.csv", *LABELS]) == 0
    printed = capsys.readouterr().out
    assert "its first line names a label and a text" in printed
    for said in ("always ", "naive Bayes", "text CNN", "macro-F1", "sentences per second"):
        assert said in printed, said
    assert max(map(len, printed.splitlines())) <= 80
    assert main(["generate", "runs/mails", "You won, then."]) == 0
    assert capsys.readouterr().out in ("ham\n", "spam\n")
    assert main(["explain", "runs/mails"]) == 0
    assert "tokens per second" in capsys.readouterr().out


def test_a_run_that_was_interrupted_goes_on_elsewhere_to_the_same_bits(capsys, monkeypatch):
    assert main(["train", "poem.txt", "--output", "whole", *TEXT, "--dropout", "0.1"]) == 0
    loss, calls = GPT.loss, iter(range(10_000))

    def interrupted(*arguments, **options):
        if next(calls) == 70:
            raise KeyboardInterrupt
        return loss(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", interrupted)
        assert main(["train", "poem.txt", "--output", "cut", *TEXT, "--dropout", "0.1"]) == 130
    assert "dynbatch train --output cut --resume" in capsys.readouterr().err
    Path("elsewhere").mkdir()
    moved = [str(shutil.move(name, "elsewhere")) for name in ("cut", "poem.txt")]
    assert main(["train", moved[1], "--output", moved[0], "--resume", "--quiet"]) == 0
    paths = [Path(name, "model.safetensors") for name in ("whole", "elsewhere/cut")]
    infos = [read_checkpoint(path) for path in paths]
    assert infos[0].step == infos[1].step and infos[0].shapes == infos[1].shapes
    states = [load_task(path).model.state_dict() for path in paths]
    for name, value in states[0].items():
        assert np.array_equal(value, states[1][name]), name


def test_a_run_goes_on_with_its_own_settings_and_refuses_others(capsys):
    assert main(["train", "poem.txt", *TEXT]) == 0
    resumed = ["--output", "runs/poem", "--resume"]
    assert main(["train", *resumed, "--epochs", "3", "--quiet"]) == 0
    assert read_checkpoint("runs/poem/model.safetensors").epoch == 3
    assert "the run has --width 16, not 32" in fails(capsys, *resumed, "--width", "32")
    assert main(["train", "poem.txt", *TEXT]) == 1
    said = capsys.readouterr()
    assert "there is a run already" in said.err and said.out == ""  # the file was not read
    assert "--resume, to go on with the run in runs/poem" in fails(capsys, *resumed[:2])
    file = "runs/poem/model.safetensors"
    assert "fix:  --output runs/poem\n" in fails(capsys, "--output", file, "--resume")
    said = fails(capsys, "--output", "runs/other", "--resume")
    assert "runs/other: there is no run to go on with" in said and "without --resume" in said
    Path("poem.txt").write_text("Other\n\ntext.\n")
    assert "--data-changed" in fails(capsys, *resumed)
    assert "the run has --task language-model, not tagging" in fails(
        capsys, *resumed, "--task", "tagging"
    )


@pytest.mark.slow
def test_a_run_that_goes_on_watches_its_parameters_as_before_or_as_it_is_told():
    assert main(["train", "poem.txt", *TEXT, "--max-tokens", "40", "--watch", "2"]) == 0
    resumed = ["train", "--output", "runs/poem", "--resume", "--quiet"]
    assert main([*resumed, "--epochs", "3"]) == 0
    assert main([*resumed, "--epochs", "4", "--watch", "3"]) == 0
    lines = read_metrics("runs/poem/metrics.jsonl")
    steps = [line["step"] for line in lines if "loss" in line]
    last = [line["step"] for line in lines if "metric" in line][2]
    watched = [step for step in steps if (step - 1) % (2 if step <= last else 3) == 0]
    assert [line["step"] for line in lines if "parameters" in line] == watched
    assert last < watched[-2] and len(watched) > 8


@pytest.mark.slow
def test_a_run_that_went_on_with_other_data_is_stopped_and_resumed_as_any_other(
    capsys, monkeypatch
):
    pairs = Path("pairs.tsv")
    assert main(["train", "pairs.tsv", "--output", "whole", *PAIRS]) == 0
    pairs.write_text(pairs.read_text() + "dada\tD A D A\n")
    shutil.copytree("whole", "cut")
    changed = ["--resume", "--epochs", "4", "--data-changed", "--quiet"]
    assert main(["train", "--output", "whole", *changed]) == 0
    step, calls = Adam.step, iter(range(100))

    def interrupted(optimizer):
        if next(calls) == 8:  # an epoch has six
            signal.raise_signal(signal.SIGINT)
        step(optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(Adam, "step", interrupted)
        assert main(["train", "--output", "cut", *changed]) == 130
    hint = "dynbatch train --output cut --resume"
    assert hint in capsys.readouterr().err
    assert main([*hint.split()[1:], "--quiet"]) == 0
    files = [Path(name, "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    pairs.write_text(pairs.read_text() + "".join([f"a{k}\tA\n" for k in range(20)]))
    assert "digest of the examples: " in fails(capsys, *hint.split()[2:])


def test_a_run_whose_checkpoint_is_damaged_or_gone_says_that_it_can_go_on_from_its_best(capsys):
    assert main(["train", "poem.txt", *TEXT]) == 0
    resumed = ["--output", "runs/poem", "--resume"]
    path, best = Path("runs/poem/model.safetensors"), Path("runs/poem/model.best.safetensors")
    kept = best.read_bytes()
    path.write_bytes(path.read_bytes()[:-100])
    said = fails(capsys, *resumed)
    assert "not a whole safetensors file" in said and f"cp {best} {path}" in said
    path.unlink()
    assert f"cp {best} {path}" in fails(capsys, *resumed)
    assert "a new run would write over it" in fails(capsys, "poem.txt", *TEXT)
    assert best.read_bytes() == kept
    shutil.copy(best, path)
    assert main(["train", *resumed, "--quiet"]) == 0


def test_how_much_of_a_run_is_shown_does_not_change_it(capsys):
    for samples in ("0", "2"):
        assert main(["train", "poem.txt", *TEXT, "--dropout", "0.1", "--output", samples,
                     "--samples", samples]) == 0  # fmt: skip
    states = [load_task(folder).model.state_dict() for folder in ("0", "2")]
    assert all(np.array_equal(value, states[1][name]) for name, value in states[0].items())
    assert main(["train", "--output", "0", "--resume", "--samples", "1", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
        (b"caf\xe9\n\nau lait\n", "poem.txt:1: byte 4, 0xe9, is not UTF-8"),
        (None, "Is a directory"),
    ],
)
def test_a_file_that_is_not_text_is_one_message(capsys, content, says):
    Path("poem.txt").unlink()
    Path("poem.txt").mkdir() if content is None else Path("poem.txt").write_bytes(content)
    assert says in fails(capsys, "poem.txt")
    assert says.replace("it is empty", "no text in it") in fails(
        capsys, "poem.txt", "--task", "language-model"
    )
    assert not Path("runs").exists()


def test_a_file_that_is_not_text_is_named_before_the_options_of_its_task(capsys):
    Path("data").write_bytes(b"a\tcaf\xe9\n")
    assert "data:1: byte 6, 0xe9, is not UTF-8" in fails(capsys, "data", "--hidden", "16", "--crf")
    with pytest.raises(SystemExit):
        main(["train", "data", "--hiden", "16"])
    assert "fix:  --hidden?" in capsys.readouterr().err


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(capsys):
    text = Path("poem.txt").read_bytes()
    found = []
    for k, content in enumerate((text, b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))):
        Path("poem.txt").write_bytes(content)
        assert main(["train", "poem.txt", "--output", f"run{k}", *TEXT]) == 0
        found.append(load_task(f"run{k}/model.safetensors").model.state_dict()["tokens.weight"])
    assert np.array_equal(*found)


def test_one_line_is_trained_on_whole(capsys):
    Path("poem.txt").write_text("The moon is up.\n")
    assert main(["train", "poem.txt", *TEXT]) == 0
    assert "validate  nothing: there are too few" in capsys.readouterr().out


def test_a_file_for_validation_can_be_given(capsys):
    Path("dev.txt").write_text("abab1\n\nababab2\n")
    assert main(["train", "poem.txt", "--dev", "dev.txt", *TEXT]) == 0
    printed = capsys.readouterr().out
    assert "train     60 documents" in printed and "validate  2 documents" in printed
    assert "test" not in printed.split("model  ")[0]


def test_what_is_missing_is_named(capsys):
    assert "which file?" in fails(capsys)
    assert "which run?" in fails(capsys, "--resume")
    assert "there is no run to go on with" in fails(capsys, "poem.txt", "--resume")
    assert "none.txt: cannot be read" in fails(capsys, "none.txt")
    with pytest.raises(SystemExit) as caught:
        main(["train", "poem.txt", "--hiden", "3"])
    assert caught.value.code == 2


def test_help_shows_the_options_of_the_task_that_the_file_is_for(capsys):
    for arguments, has in (
        (["--epochs", "3", "pairs.tsv"], "--attention"),
        (["poem.txt"], "--heads"),
    ):
        with pytest.raises(SystemExit):
            main(["train", *arguments, "--help"])
        printed = capsys.readouterr().out
        assert has in printed and "--epochs" in printed
        assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.slow
def test_a_run_whose_file_lies_elsewhere_says_so_and_goes_on_where_it_is_named(folder, capsys):
    pairs = ["pairs.tsv", *PAIRS]
    assert main(["train", *pairs]) == 0
    Path("elsewhere").mkdir()
    shutil.move("pairs.tsv", "elsewhere/moved.tsv")
    error = fails(capsys, "--output", "runs/pairs", "--resume", "--epochs", "3")
    assert "pairs.tsv: the run was trained on it" in error
    assert "dynbatch train FILE --output runs/pairs --resume" in error
    again = ["elsewhere/moved.tsv", "--output", "runs/pairs", "--resume", "--epochs", "3"]
    assert main(["train", *again, "--quiet"]) == 0
    assert read_checkpoint("runs/pairs/model.safetensors").epoch == 3


def test_a_pipe_is_read_once_where_the_task_is_given_and_else_refused(folder, capsys):
    for options, status in ([], 1), (["--task", "language-model"], 0):
        reader, writer = os.pipe()
        os.write(writer, Path("poem.txt").read_bytes())
        os.close(writer)
        found = main(["train", f"/dev/fd/{reader}", *TEXT, *options, "--output", "piped"])
        os.close(reader)
        printed = capsys.readouterr()
        assert found == status and ("it is a pipe or a device" in printed.err) == (not options)
    assert load_task("piped/model.safetensors").name == "language-model"


def test_the_prompt_of_the_printed_command_is_short():
    assert prompt_of([TaggedSentence(("x" * 1_000_000,), ("X",))], Tagging) == "x" * 200
