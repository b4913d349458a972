"""The command `dynbatch generate`: what it prints, where prompts come from, what it refuses."""

import io
import json
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import dynbatch as db
from dynbatch.commands import generate
from dynbatch.commands.main import main
from dynbatch.generation.engine import Engine
from dynbatch.models.pretrained import GPT2, GPT2Config
from dynbatch.tasks.classification import Classification, ClassificationSettings
from dynbatch.tasks.tagging import Tagging, TaggingSettings
from dynbatch.tasks.task import Parts
from dynbatch.text import ByteTokenizer, LabelledText, TaggedSentence
from dynbatch.text.lines import printable
from dynbatch.train import save_checkpoint

PROMPTS = ["Once", "a much longer beginning than the others", "é", "x"]


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 of bytes with random weights, and how its folder says to generate."""
    sizes = {"n_positions": 60, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2(GPT2Config(vocab_size=256, **sizes), rng=0)
    rng = np.random.default_rng(1)
    for parameter in model.parameters():
        parameter.assign(rng.standard_normal(parameter.shape) / 2)
    model.save_pretrained(tmp_path / "model")
    settings = {"max_new_tokens": 12, "eos_token_id": 200, "repetition_penalty": 1.5}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    return str(tmp_path / "model")


def run(*arguments):
    return main(["generate", *arguments, "--tokenizer", "bytes"])


def texts(folder, prompts, **changes):
    """The texts of each prompt, by the library."""
    config = db.GenerationConfig.from_pretrained(folder, **{"seed": 0, **changes})
    results = db.generate(
        GPT2.from_pretrained(folder), prompts, config, tokenizer=ByteTokenizer()
    )  # fmt: skip
    return [one.text for of_prompt in results for one in of_prompt]


def escaped(text):
    pairs = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
    for one, other in pairs:
        text = text.replace(one, other)
    return text


def test_one_result_is_printed_piece_by_piece(folder, monkeypatch, capsys):
    pieces = []
    monkeypatch.setattr(generate.tqdm, "write", lambda text, end: pieces.append(text + end))
    assert run(folder, "Once") == 0
    assert "".join(pieces) == texts(folder, ["Once"])[0] + "\n"
    assert len(pieces) > 3 and capsys.readouterr().out == ""


def test_each_of_several_results_is_a_line_in_the_order_of_the_prompts(folder, capsys):
    options = ["--temperature", "1.5", "-n", "2", "--seed", "3"]
    assert run(folder, *PROMPTS[:2], *options, *PROMPTS[2:], "--batch-size", "2") == 0
    expected = texts(
        folder, PROMPTS, do_sample=True, temperature=1.5, num_return_sequences=2, seed=3
    )
    assert len(set(expected)) == 8
    assert capsys.readouterr().out.split("\n")[:-1] == [escaped(text) for text in expected]


def test_json_has_tokens_scores_and_reasons(folder, capsys):
    assert run(folder, "Once", "--num-beams", "3", "-n", "2", "--json", "--stop", "\n") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt"] == "Once" and len(found["results"]) == 2
    for one in found["results"]:
        assert len(one["tokens"]) == len(one["log_probs"]) <= 12
        assert one["reason"] in ("end", "length", "stop string") and one["score"] < 0


def test_scores_are_log_probabilities_before_the_texts(folder, capsys):
    options = ["--num-beams", "3", "-n", "2", "--length-penalty", "1"]
    assert run(folder, "Once", "x", *options, "--json") == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [one for of_prompt in objects for one in of_prompt["results"]]
    for one in expected:
        assert one["log_prob"] == math.fsum(one["log_probs"]) < one["score"] < 0
    assert run(folder, "Once", "x", *options, "--scores") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]
    assert lines == [[f"{one['log_prob']:.4f}", escaped(one["text"])] for one in expected]
    assert run(folder, "Once", "--scores") == 0
    (line,) = capsys.readouterr().out.split("\n")[:-1]
    score, text = line.split("\t")
    assert float(score) < 0 and [text] == [escaped(one) for one in texts(folder, ["Once"])]
    assert run(folder, "", "x", "--scores") == 1
    empty, other = capsys.readouterr().out.split("\n")[:-1]
    assert empty == "" and "\t" in other


def test_no_more_prompts_than_asked_for_are_in_the_engine(folder, monkeypatch, capsys):
    counts = []
    step = Engine.step

    def counting(engine):
        counts.append(len(engine._queue.live) + len(engine._queue.waiting))
        return step(engine)

    monkeypatch.setattr(Engine, "step", counting)
    assert run(folder, *PROMPTS, "--batch-size", "3") == 0
    assert max(counts) == 3
    assert capsys.readouterr().out.count("\n") == 4


def test_the_last_line_has_prompts_tokens_and_the_memory_of_caches(folder, capsys):
    assert run(folder, *PROMPTS, "--max-new-tokens", "3") == 0
    assert capsys.readouterr().err.startswith("4 prompts, 12 tokens in ")
    assert run(folder, "x", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_prompts_are_the_lines_of_a_file_or_of_standard_input(
    folder, tmp_path, monkeypatch, capsys
):
    content = "Once\n\n \r\né\r\nx".encode()
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    assert run(folder, "--file", str(path)) == 0
    expected = [escaped(text) for text in texts(folder, ["Once", "é", "x"])]
    assert capsys.readouterr().out.split("\n")[:-1] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run(folder) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == expected


def test_a_pipe_sees_answers_before_its_last_prompt_is_read(folder, monkeypatch):
    class Pipe(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            seen.append(len(pieces))
            line = lines.pop(0) if lines else b""
            buffer[: len(line)] = line
            return len(line)

    lines, seen, pieces = [b"x\n", b"\n", b"Once\n", b"y\n", b"z\n"], [], []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Pipe())))
    monkeypatch.setattr(generate.tqdm, "write", lambda text, end: pieces.append(text))
    assert run(folder, "--batch-size", "2") == 0
    assert "".join(pieces).count("\n") == 4
    assert seen[:3] == [0, 0, 0] and seen[4] > 0


def test_a_prompt_that_is_refused_leaves_an_empty_line_and_the_others_go_on(folder, capsys):
    assert run(folder, "Once", "", "y" * 61, "x") == 1
    printed = capsys.readouterr()
    first, last = texts(folder, ["Once"]), texts(folder, ["x"])
    assert printed.out.split("\n")[:-1] == [escaped(*first), "", "", escaped(*last)]
    assert "error: prompt 2: Engine.add: the prompt is empty" in printed.err
    assert "error: prompt 3: Engine.add: a prompt of 61 tokens leaves no room" in printed.err
    assert "4 prompts, 2 refused" in printed.err
    assert run(folder, "", "--json") == 1
    assert "the prompt is empty" in json.loads(capsys.readouterr().out)["error"]


def test_an_empty_prompt_is_the_id_that_begins_texts(folder, capsys):
    settings = {"max_new_tokens": 5, "bos_token_id": 7}
    (Path(folder) / "generation_config.json").write_text(json.dumps(settings))
    assert run(folder, "") == 0
    assert capsys.readouterr().out == texts(folder, ["\x07"])[0] + "\n"


def test_a_terminal_gets_nothing_that_it_would_obey(folder, monkeypatch, capsys):
    assert run(folder, "x", "Once") == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(folder, "x", "Once") == 0
    seen = capsys.readouterr().out
    assert plain != seen == printable(plain)


def test_a_field_that_nobody_knows_is_a_warning_of_one_line(folder, capsys):
    (Path(folder) / "generation_config.json").write_text('{"magic": 3, "max_new_tokens": 2}')
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run(folder, "x", "--quiet") == 0
    said = "warning: generation_config.json: magic = 3 is not known here, and has no effect\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("of_folder", "options", "found"),
    [
        ({}, [], (False, 1, 1)),
        ({"do_sample": True}, [], (True, 1, 1)),
        ({"do_sample": True}, ["--greedy"], (False, 1, 1)),
        ({"num_beams": 4}, ["--greedy"], (False, 1, 1)),
        ({"num_beams": 4}, ["-n", "3"], (False, 4, 3)),
        ({"num_beams": 4}, ["--top-p", "0.5"], (True, 1, 1)),
        ({"do_sample": True}, ["--num-beams", "2"], (False, 2, 1)),
        ({}, ["--top-k", "3"], (True, 1, 1)),
        ({}, ["-n", "3"], (True, 1, 3)),
        ({}, ["-n", "3", "--num-beams", "5"], (False, 5, 3)),
    ],
)
def test_options_say_whether_tokens_are_drawn(
    of_folder, options, found, folder, monkeypatch, capsys
):
    seen = []
    changed = generate.changed
    monkeypatch.setattr(generate, "changed", lambda *given: seen.append(changed(*given)) or seen[0])
    (Path(folder) / "generation_config.json").write_text(json.dumps(of_folder))
    assert run(folder, "x", *options, "--max-new-tokens", "2") == 0
    assert (seen[0].do_sample, seen[0].num_beams, seen[0].num_return_sequences) == found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--file", "missing.txt"], "missing.txt: cannot be read: No such file"),
        (["--file", "latin.txt"], "latin.txt:2: byte 1, 0xe9, is not UTF-8"),
        (["--file", "blank.txt"], "blank.txt: there is no prompt.\n  fix:"),
        (["x", "--top-p", "2"], "top_p is 2.0"),
        (["x", "--greedy", "--top-k", "3"], "--greedy with --top-k"),
        (["x", "--num-beams", "2", "--top-k", "3"], "--num-beams 2 with --top-k.\n  rule:"),
        (["x", "--num-beams", "2", "-n", "3"], "-n 3 with --num-beams 2.\n  rule:"),
        (["x", "--memory-limit", "little"], "'little' is not a number of bytes"),
    ],
)
def test_bad_input_is_one_message_without_the_commands_own_lines(
    arguments, said, folder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "latin.txt").write_bytes(b"a\n\xe9\n")
    (tmp_path / "blank.txt").write_bytes(b"\n \n")
    monkeypatch.chdir(tmp_path)
    assert run(folder, *arguments) == 1
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.startswith("error: ") and not printed.out


def test_blank_lines_between_prompts_are_told(tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    for content, said in [
        (b"a\n\nb\n", f"warning: {file}:2: a blank line has no result\n"),
        (b"\n\na\n\n", f"warning: {file}:1: 2 blank lines have no result\n"),
        (b"a\nb\n\n", ""),
    ]:
        file.write_bytes(content)
        assert len(list(generate._lines(str(file)))) == content.count(b"a") + content.count(b"b")
        assert capsys.readouterr().err == said


def test_numbers_are_rounded_as_matmul_and_precision_say(folder, capsys):
    found = []
    for name, value in [("matmul", "float32"), ("matmul", "bfloat16"), ("precision", "bfloat16")]:
        assert run(folder, *PROMPTS, f"--{name}", value, "--json") == 0
        out, err = capsys.readouterr()
        config = db.GenerationConfig.from_pretrained(folder, seed=0)
        model, options = GPT2.from_pretrained(folder), {name: value}
        expected = db.generate(model, PROMPTS, config, tokenizer=ByteTokenizer(), **options)
        found.append([json.loads(line)["results"][0]["log_probs"] for line in out.splitlines()])
        assert found[-1] == [list(one.log_probs) for (one,) in expected]
        assert ("factors of bfloat16" in err) == (value == "bfloat16")
        assert ("keys and values in bfloat16" in err) == (name == "precision")
        assert found.count(found[-1]) == 1
    with pytest.raises(SystemExit):
        run(folder, "Once", "--matmul", "half")
    assert "'half' is not one of float32, tf32, bfloat16" in capsys.readouterr().err


def test_weights_are_read_in_16_bits_as_dtype_says(folder, tmp_path, capsys):
    assert run(folder, *PROMPTS, "--dtype", "bfloat16", "--json") == 0
    out, _ = capsys.readouterr()
    config = db.GenerationConfig.from_pretrained(folder, seed=0)
    model = GPT2.from_pretrained(folder, dtype="bfloat16")
    expected = db.generate(model, PROMPTS, config, tokenizer=ByteTokenizer())
    found = [json.loads(line)["results"][0]["log_probs"] for line in out.splitlines()]
    assert found == [list(one.log_probs) for (one,) in expected]
    sentences = [TaggedSentence(("the", "cat", "."), ("DT", "NN", "."))] * 5
    task = Tagging.begin(Parts(sentences, [], []), TaggingSettings())
    own = saved(task, tmp_path / "own.safetensors")
    assert main(["generate", own, "the cat", "--dtype", "bfloat16"]) == 1
    assert "families of Hugging Face's" in capsys.readouterr().err


def saved(task, path):
    """The checkpoint of a task that has learned nothing."""
    extra = {"task": task.name, "description": task.description()}
    save_checkpoint(path, task.model, extra=extra)
    return str(path)


def test_a_tagger_writes_words_with_tags(tmp_path, capsys):
    sentences = [TaggedSentence(("the", "cat", "."), ("DT", "NN", "."))] * 5
    task = Tagging.begin(Parts(sentences, [], []), TaggingSettings())
    model = saved(task, tmp_path / "model.safetensors")
    lines = ["the dog.", "cat"]
    assert main(["generate", model, *lines, "--batch-size", "1"]) == 0
    assert capsys.readouterr().out == "".join([f"{task.line(x)}\n" for x in task.label(lines)])
    assert main(["generate", str(tmp_path), *lines, "--json"]) == 0
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["words"] == ["the", "dog", "."] and len(first["tags"]) == 3
    assert second["text"] == "cat"


def test_a_classifier_writes_labels(tmp_path, capsys):
    texts = [LabelledText("See you.", "ham"), LabelledText("You won!", "spam")]
    task = Classification.begin(Parts(texts, [], []), ClassificationSettings(min_count=1))
    model = saved(task, tmp_path / "model.safetensors")
    assert main(["generate", model, "You!", "", "See.", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == json.loads(json.dumps(task.label(["You!", "", "See."])))
    assert main(["generate", model, "You!", "", "See.", "--json", "--matmul", "bfloat16"]) == 0
    rounded = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rounded == json.loads(json.dumps(task.label(["You!", "", "See."], "bfloat16")))
    assert rounded != found
    assert main(["generate", model, "You!"]) == 0
    assert capsys.readouterr().out == f"{found[0]['label']}\n"


@pytest.mark.parametrize("option", [["--top-k", "3"], ["-n", "2"], ["--greedy"]])
def test_a_model_of_labels_takes_no_options_of_writing(option, tmp_path, capsys):
    texts = [LabelledText("See you.", "ham"), LabelledText("You won!", "spam")]
    task = Classification.begin(Parts(texts, [], []), ClassificationSettings())
    assert main(["generate", saved(task, tmp_path / "model.safetensors"), "You!", *option]) == 1
    assert "is a model for classification, which chooses no tokens" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "dynbatch generate gpt2/" in out and "standard input" in out and "--top-p" in out


def test_scores_of_labels_that_are_nan_are_an_error(tmp_path, capsys):
    texts = [LabelledText("See you.", "ham"), LabelledText("You won!", "spam")]
    task = Classification.begin(Parts(texts, [], []), ClassificationSettings(min_count=1))
    for parameter in task.model.parameters():
        parameter.assign(np.full(parameter.shape, np.nan))
    path = saved(task, tmp_path / "model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["generate", path, "You!", "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("warning:") and "'words.weight' are NaN" in printed.err
    assert "error: 'You!': the scores of its labels are NaN" in printed.err and not printed.out
